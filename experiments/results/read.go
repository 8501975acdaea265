package results

// This file reads documents, and believes nothing in them before it is checked.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"tensorcast/internal/regular"
)

var (
	// ErrNotDocument says that data are no document of this schema and version, or contradict themselves.
	ErrNotDocument = errors.New("not a document of results")
	// ErrBareReport says that data are the report of a build that wrote no documents yet. It wraps ErrNotDocument.
	ErrBareReport = fmt.Errorf("%w: it has no schema, as reports of older builds", ErrNotDocument)
)

const (
	// MaxBytes bounds the size of a document. A run of 1000 tokens takes some 40 KiB.
	MaxBytes = 256 << 20
	// maxDocuments bounds how many documents a directory may have.
	maxDocuments = 10000
)

var (
	commitForm = regexp.MustCompile(`^([0-9a-f]{7,64})?$`)
	// nameForm is the form of a document's name, which is its file's without ".json".
	nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
)

// Parse reads a document. It refuses another schema or version, members that the schema does not have, data after the
// document, and members that the report contradicts. The report itself is only checked when it is used (see
// [Document.Open]). All errors wrap [ErrNotDocument]; that of a report without a document wraps [ErrBareReport].
func Parse(data []byte) (*Document, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%w: it has %d MiB, more than %d", ErrNotDocument, len(data)>>20, MaxBytes>>20)
	}
	// The schema is looked at first: the members of another version are not known here.
	var head struct {
		Schema  *string `json:"schema"`
		Version int     `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotDocument, err)
	}
	switch {
	case head.Schema == nil:
		return nil, ErrBareReport
	case *head.Schema != Schema:
		return nil, fmt.Errorf("%w: its schema is %q, and %q is wanted", ErrNotDocument, *head.Schema, Schema)
	case head.Version != Version:
		return nil, fmt.Errorf("%w: it has version %d of the schema, and this build reads version %d: use the build "+
			"that wrote it, or measure again", ErrNotDocument, head.Version, Version)
	}
	d := new(Document)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotDocument, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more data follow it", ErrNotDocument)
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	return d, nil
}

// check reports what is wrong with the members of a document.
func (d *Document) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", ErrNotDocument, fmt.Errorf(format, args...))
	}
	switch {
	case kinds[d.Kind] == nil:
		return wrong("its kind is %q, and known are %s", d.Kind, strings.Join(Kinds(), ", "))
	case d.Started.IsZero():
		return wrong("it does not say when the series began")
	case strings.TrimSpace(d.Command) == "":
		return wrong("it does not say which command measured")
	case !commitForm.MatchString(d.Build.Commit):
		return wrong("the commit %q is not 7 to 64 hexadecimal digits", d.Build.Commit)
	case !bytes.HasPrefix(bytes.TrimSpace(d.Report), []byte("{")):
		return wrong("its report is missing")
	}
	again := *d
	if err := again.deriveFromReport(); err != nil {
		return err
	}
	switch {
	case !again.Started.Equal(d.Started):
		return wrong("the series began at %s, and its report says %s", d.Started, again.Started)
	case again.Machine != d.Machine:
		return wrong("its machine is another one than its report says")
	case again.Interrupted != d.Interrupted:
		return wrong("it and its report do not say the same of whether the series was interrupted")
	case !reflect.DeepEqual(again.Disk, d.Disk):
		return wrong("its disk is another one than its report says")
	}
	return nil
}

// ReadFile reads the document in a regular file.
func ReadFile(path string) (*Document, error) {
	data, err := regular.Read(path, MaxBytes)
	if err != nil {
		return nil, err
	}
	d, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// Named is a document with its name.
type Named struct {
	Name string // of its file, without the suffix .json
	*Document
}

// Dir is where a checkout has its documents.
const Dir = "experiments/results"

// ReadNamed reads the document with a name from a directory.
func ReadNamed(dir, name string) (Named, error) {
	if !nameForm.MatchString(name) {
		return Named{}, fmt.Errorf("%q is no name of a document: want letters, digits, points, - and _", name)
	}
	d, err := ReadFile(filepath.Join(dir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return Named{}, fmt.Errorf("there is no document %q in %s: %w", name, dir, err)
	}
	return Named{name, d}, err
}

// ReadDir reads all documents in a directory, sorted by name: the files whose names end in ".json". Those that cannot
// be read are left out, and the error names each of them.
func ReadDir(dir string) (all []Named, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, e := range entries {
		name, isJSON := strings.CutSuffix(e.Name(), ".json")
		if !isJSON {
			continue
		}
		if len(all) == maxDocuments {
			failed = append(failed, fmt.Errorf("%s has more than %d documents", dir, maxDocuments))
			break
		}
		d, err := ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		all = append(all, Named{name, d})
	}
	return all, errors.Join(failed...)
}
