package pattern

// This file writes a cycle as a header for C and C++: access_pattern.h.

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// WriteHeader writes the cycle as a header that compiles as C (since C89, where size_t has 64 bits)
// and as C++ without a warning:
//
//	struct AccessEntry { const char *name; size_t offset; size_t size; };
//	static const struct AccessEntry PER_TOKEN_PATTERN[] = {...};
//	#define PER_TOKEN_PATTERN_LENGTH ...
//
// An entry is a read, in the order of use. Its offset is in the model's file, which a comment names
// where there are several; its size is all that any token may read of the tensor, and a comment
// says how much a token gathers where that is less. Names are bytes of the file's, escaped. A cycle
// that [Cycle.Write] refuses is refused (ErrInvalid), and one without reads: C has no empty arrays.
func (c *Cycle) WriteHeader(w io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	if len(c.Reads) == 0 {
		return fmt.Errorf("%w: it has no reads", ErrInvalid)
	}
	var b bytes.Buffer
	b.WriteString("/* What one generated token reads of its model, in the order of use. Offsets and sizes are " +
		"bytes of the file.\n")
	for i := range c.Files {
		f := &c.Files[i]
		fmt.Fprintf(&b, " * File %d: %s, %d bytes, fingerprint %s\n", i, comment(f.Name), f.Size, f.Fingerprint)
	}
	b.WriteString(` */
#ifndef ACCESS_PATTERN_H
#define ACCESS_PATTERN_H

#include <stddef.h>

struct AccessEntry {
	const char *name;
	size_t offset;
	size_t size;
};

static const struct AccessEntry PER_TOKEN_PATTERN[] = {
`)
	for i := range c.Reads {
		r := &c.Reads[i]
		fmt.Fprintf(&b, "\t{%s, %d, %d},", quoteC(r.Tensor), r.Offset, r.Length)
		var notes []string
		if len(c.Files) > 1 {
			notes = append(notes, fmt.Sprintf("file %d", r.File))
		}
		if r.Gathers() {
			notes = append(notes, fmt.Sprintf("a token gathers %d x %d bytes of it", r.Slices, r.Slice))
		}
		if len(notes) > 0 {
			fmt.Fprintf(&b, " /* %s */", strings.Join(notes, ", "))
		}
		b.WriteByte('\n')
	}
	b.WriteString(`};

#define PER_TOKEN_PATTERN_LENGTH (sizeof(PER_TOKEN_PATTERN) / sizeof(PER_TOKEN_PATTERN[0]))

#endif
`)
	_, err := w.Write(b.Bytes())
	return err
}

// quoteC is a text as a literal of C: bytes beyond ASCII are octal, of three digits, which no digit
// behind them continues, and no question marks make a trigraph.
func quoteC(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\' || c == '?':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// comment is a text that neither ends the comment in which it is, nor looks like the beginning of
// another, nor continues a line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`/*\?`, r) {
			return '_'
		}
		return r
	}, s)
}
