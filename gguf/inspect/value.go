package inspect

// This file writes metadata values piece by piece, because a file may claim to hold a string of 255
// MiB.

import (
	"bufio"
	"io"
	"unicode"
	"unicode/utf8"

	"tensorcast/gguf"
)

// value is the value of a metadata entry.
type value struct {
	file  *gguf.File
	entry *gguf.KV
	limit int64 // of an array's elements; negative: all
}

// writeJSON writes the value as JSON.
func (v *value) writeJSON(w *bufio.Writer) error {
	isArray := v.entry.Type == gguf.ValueArray
	var scratch []byte
	separator := "["
	err := v.file.Each(v.entry, v.limit, func(elem any) error {
		if isArray {
			if _, err := w.WriteString(separator); err != nil {
				return err
			}
			separator = ","
		}
		if t, ok := elem.(*gguf.Text); ok {
			return writeJSONText(w, t)
		}
		scratch = appendJSON(scratch[:0], elem)
		_, err := w.Write(scratch)
		return err
	})
	if err != nil || !isArray {
		return err
	}
	if separator == "[" {
		_, err = w.WriteString("[]")
	} else {
		err = w.WriteByte(']')
	}
	return err
}

// writeText writes the value for a cell. A string is written as it is, unless it has control
// characters, which could act on a terminal, or invalid UTF-8. Such strings, and arrays, are
// written as JSON.
func (v *value) writeText(w *bufio.Writer) error {
	if v.entry.Type != gguf.ValueString {
		return v.writeJSON(w)
	}
	return v.file.Each(v.entry, 0, func(elem any) error {
		t := elem.(*gguf.Text)
		plain := true
		err := eachPiece(t, func(piece []byte) error {
			plain = plain && isPlain(piece)
			return nil
		})
		if err != nil {
			return err
		}
		if !plain {
			return writeJSONText(w, t)
		}
		return eachPiece(t, func(piece []byte) error {
			_, err := w.Write(piece)
			return err
		})
	})
}

// isPlain reports whether bytes are valid UTF-8 without control characters, other than line ends
// and tabs.
func isPlain(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1,
			unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r',
			unicode.Is(unicode.Bidi_Control, r):
			return false
		}
		b = b[n:]
	}
	return true
}

// writeJSONText writes a text as a JSON string.
func writeJSONText(w *bufio.Writer, t *gguf.Text) error {
	if err := w.WriteByte('"'); err != nil {
		return err
	}
	err := eachPiece(t, func(piece []byte) error {
		quoted := appendJSON(nil, string(piece))
		_, err := w.Write(quoted[1 : len(quoted)-1])
		return err
	})
	if err != nil {
		return err
	}
	return w.WriteByte('"')
}

// eachPiece calls do with the pieces of a text, cut between characters.
func eachPiece(t *gguf.Text, do func([]byte) error) error {
	var rest []byte // the beginning of a character
	for piece, err := range t.Pieces() {
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			piece = append(rest, piece...)
		}
		whole := len(piece)
		for back := 1; back < utf8.UTFMax && back <= len(piece); back++ {
			if last := piece[len(piece)-back:]; utf8.RuneStart(last[0]) {
				if !utf8.FullRune(last) {
					whole -= back
				}
				break
			}
		}
		rest = append([]byte(nil), piece[whole:]...)
		if err := do(piece[:whole]); err != nil {
			return err
		}
	}
	if len(rest) > 0 {
		return do(rest)
	}
	return nil
}

// limitedWriter fails when more is written to it than is allowed.
type limitedWriter struct {
	w    io.Writer
	left int64
	err  error // what to return then
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, l.err
	}
	return l.w.Write(b)
}
