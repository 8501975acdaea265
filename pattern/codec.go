package pattern

// This file writes and reads a cycle as a file, pattern.json. A reader may run as root, so nothing
// in the file is believed unchecked.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SchemaVersion is the version of pattern.json. It rises when an older program would misunderstand
// a newer file. Fields that are only added do not change it.
const SchemaVersion = 1

var (
	// ErrSchema means that a version of this program with another format wrote the pattern.
	ErrSchema = errors.New("the pattern has another schema version")
	// ErrInvalid means that a file holds no pattern, or one that contradicts itself.
	ErrInvalid = errors.New("not a valid pattern")
)

// These are limits of what a pattern may hold. Real ones are far below: a thousand reads take some
// 200 kB.
const (
	maxBytes = 16 << 20 // of a pattern.json
	maxFiles = 1 << 12
	maxText  = 255 // bytes of a name

	fingerprintDigits = 32
)

const schemaKey, filesKey, readsKey = "pattern_schema", "files", "reads"

// Write writes the cycle as JSON, a read per line, in the form that ReadCycle reads. It refuses a
// cycle that ReadCycle would refuse (ErrInvalid).
func (c *Cycle) Write(w io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{%q: %d,\n", schemaKey, SchemaVersion)
	if err := writeList(&b, filesKey, c.Files); err != nil {
		return err
	}
	b.WriteString(",\n")
	if err := writeList(&b, readsKey, c.Reads); err != nil {
		return err
	}
	b.WriteString("}\n")
	if b.Len() > maxBytes {
		return tooLong()
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeList[T any](b *bytes.Buffer, key string, list []T) error {
	fmt.Fprintf(b, "%q: [", key)
	separator := "\n  "
	for i := range list {
		line, err := json.Marshal(&list[i])
		if err != nil {
			return err
		}
		b.WriteString(separator)
		b.Write(line)
		separator = ",\n  "
	}
	b.WriteString("\n]")
	return nil
}

func tooLong() error { return fmt.Errorf("%w: it is longer than %d MiB", ErrInvalid, maxBytes>>20) }

// ReadCycle reads what Write has written. It takes bounded memory for any input. Its result is
// consistent: extents lie in their files, and neither sizes nor times overflow when they are added
// up. Errors are ErrSchema, ErrInvalid and those of r.
func ReadCycle(r io.Reader) (*Cycle, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the pattern: %w", err)
	}
	if len(data) > maxBytes {
		return nil, tooLong()
	}
	c, err := decodeCycle(json.NewDecoder(bytes.NewReader(data)))
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, ErrSchema), errors.Is(err, ErrInvalid):
		return nil, err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: it ends too early", ErrInvalid)
	}
	return nil, fmt.Errorf("%w: %.200s", ErrInvalid, err.Error()) // the error may quote the file at any length
}

func decodeCycle(d *json.Decoder) (*Cycle, error) {
	if err := expectDelim(d, json.Delim('{')); err != nil {
		return nil, err
	}
	c := &Cycle{}
	versioned := false
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		switch token {
		case schemaKey:
			var version int
			if err := d.Decode(&version); err != nil {
				return nil, err
			}
			if version != SchemaVersion {
				return nil, fmt.Errorf("%w: %d, and this program reads %d: make it again with analyze", ErrSchema,
					version, SchemaVersion)
			}
			versioned = true
		case filesKey:
			c.Files, err = decodeList(d, filesKey, c.Files, maxFiles)
		case readsKey:
			c.Reads, err = decodeList(d, readsKey, c.Reads, maxReads)
		default: // of a later version
			var ignored json.RawMessage
			err = d.Decode(&ignored)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := expectDelim(d, json.Delim('}')); err != nil {
		return nil, err
	}
	if !versioned {
		return nil, fmt.Errorf("%w: it has no %q", ErrInvalid, schemaKey)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: something follows it", ErrInvalid)
	}
	return c, c.check()
}

func expectDelim(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if err == nil && token != want {
		err = fmt.Errorf("%w: it is no JSON object", ErrInvalid)
	}
	return err
}

// decodeList reads element by element, so that no more than most are ever created. An element in
// memory is far larger than "{}".
func decodeList[T any](d *json.Decoder, key string, list []T, most int) ([]T, error) {
	if list != nil {
		return nil, fmt.Errorf("%w: %q comes twice", ErrInvalid, key)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('[') {
		return nil, fmt.Errorf("%w: %q is no list", ErrInvalid, key)
	}
	list = []T{}
	for d.More() {
		if len(list) == most {
			return nil, fmt.Errorf("%w: it has more than %d %s", ErrInvalid, most, key)
		}
		var element T
		if err := d.Decode(&element); err != nil {
			return nil, fmt.Errorf("%s %d: %w", key, len(list), err)
		}
		list = append(list, element)
	}
	_, err = d.Token() // the end of the list
	return list, err
}

// check returns what is wrong with a cycle.
func (c *Cycle) check() error {
	switch {
	case len(c.Files) == 0 || len(c.Reads) == 0:
		return fmt.Errorf("%w: it has %d files and %d reads", ErrInvalid, len(c.Files), len(c.Reads))
	case len(c.Files) > maxFiles || len(c.Reads) > maxReads:
		return fmt.Errorf("%w: %d files (at most %d) and %d reads (at most %d)", ErrInvalid, len(c.Files), maxFiles,
			len(c.Reads), maxReads)
	}
	var size, length, nanos int64
	for i := range c.Files {
		f := &c.Files[i]
		if err := f.check(); err != nil {
			return fmt.Errorf("%w: file %d %w", ErrInvalid, i, err)
		}
		if !addChecked(&size, f.Size) {
			return fmt.Errorf("%w: the files together are too large", ErrInvalid)
		}
	}
	for i := range c.Reads {
		r := &c.Reads[i]
		if err := r.check(c.Files); err != nil {
			return fmt.Errorf("%w: read %d %w", ErrInvalid, i, err)
		}
		if !addChecked(&length, r.Length) || !addChecked(&nanos, max(r.Nanos, 0)) {
			return fmt.Errorf("%w: the reads together are too large, or take too long", ErrInvalid)
		}
	}
	return nil
}

// addChecked adds n, which is not negative, to sum. It returns false if that would overflow.
func addChecked(sum *int64, n int64) bool {
	if n > math.MaxInt64-*sum {
		return false
	}
	*sum += n
	return true
}

func (f *CycleFile) check() error {
	switch {
	case !isPrintable(f.Name) || strings.ContainsRune(f.Name, '/') || f.Name == "." || f.Name == "..":
		return fmt.Errorf("has the name %.100q", f.Name)
	case f.Size <= 0:
		return fmt.Errorf("has %d bytes", f.Size)
	case len(f.Fingerprint) != fingerprintDigits || strings.Trim(f.Fingerprint, "0123456789abcdef") != "":
		return fmt.Errorf("has the fingerprint %.100q, not %d hex digits", f.Fingerprint, fingerprintDigits)
	}
	return nil
}

func (r *CycleRead) check(files []CycleFile) error {
	switch {
	case !isPrintable(r.Tensor) || !isPrintable(r.Op):
		return fmt.Errorf("is of tensor %.100q by op %.100q", r.Tensor, r.Op)
	case r.File < 0 || r.File >= len(files):
		return fmt.Errorf("is of file %d of %d", r.File, len(files))
	case r.Offset < 0 || r.Length <= 0 || r.Length > files[r.File].Size || r.Offset > files[r.File].Size-r.Length:
		return fmt.Errorf("is of %d bytes at %d of a file of %d", r.Length, r.Offset, files[r.File].Size)
	case r.Slice == 0 && (r.Slices != 0 || r.Experts):
		return fmt.Errorf("has %d slices of 0 bytes", r.Slices)
	case r.Slice != 0 && (r.Slice < 0 || r.Slices <= 0 || int64(r.Slices) > r.Length/r.Slice):
		return fmt.Errorf("has %d slices of %d bytes, of %d", r.Slices, r.Slice, r.Length)
	case r.Nanos < -1:
		return fmt.Errorf("takes %d ns", r.Nanos)
	}
	return nil
}

// isPrintable reports whether a name can be shown on a terminal.
func isPrintable(name string) bool {
	return name != "" && len(name) <= maxText && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}
