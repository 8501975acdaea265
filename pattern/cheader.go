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
// An entry is a read, in the order of use. Its offset is in the model's file. A comment names the
// file if there are several. Its size is all that any token may read of the tensor. A comment says
// how much a token gathers if that is less. Names are the bytes of the file's names, escaped.
// basis is that of the pattern (Pattern.Basis). If it is not "", comments are about a pass through the
// model instead of a token. WriteHeader refuses (ErrInvalid) a cycle that [Cycle.Write] refuses, and one without reads,
// because C has no empty arrays.
func (c *Cycle) WriteHeader(w io.Writer, basis string) error {
	if err := c.check(); err != nil {
		return err
	}
	if len(c.Reads) == 0 {
		return fmt.Errorf("%w: it has no reads", ErrInvalid)
	}
	var b bytes.Buffer
	what, reader := "one generated token reads of its model", "a token"
	if basis != "" {
		what, reader = "a decode reads of its model as it goes through it once", "a pass"
	}
	fmt.Fprintf(&b, "/* What %s, in the order of use. Offsets and sizes are bytes of the file.\n", what)
	if basis != "" {
		fmt.Fprintf(&b, " * %s.\n", commentText(basis))
	}
	for i := range c.Files {
		f := &c.Files[i]
		fmt.Fprintf(&b, " * File %d: %s, %d bytes, fingerprint %s\n", i, commentText(f.Name), f.Size, f.Fingerprint)
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
			notes = append(notes, fmt.Sprintf("%s gathers %d x %d bytes of it", reader, r.Slices, r.Slice))
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

// quoteC returns a text as a literal of C. Bytes beyond ASCII become octal escapes of three digits,
// which no following digit can continue. Question marks are escaped, so that they make no trigraph.
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

// commentText returns a text that neither ends the comment around it, nor looks like the beginning
// of another, nor continues a line.
func commentText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`/*\?`, r) {
			return '_'
		}
		return r
	}, s)
}
