// Package results keeps what instruments have measured as data: one JSON document for each series, which says on which
// machine, with which build and by which command it was measured, and holds the series' own report with the raw figures
// of every run. "lab ... --save" writes such a document, and "lab results" reads them.
//
// From documents come the tables and figures of the project's texts ([UpdateDocs]), one table of all runs for other
// programs ([Columns]), and comparisons of two series ([Compare]).
//
// # The schema
//
// A document is an object with the members of [Document], of which "schema" is [Schema] and "version" is [Version].
// The version rises when a member is added, removed or changes its meaning; a document of another version is refused.
// What "report" holds is defined by the instrument that "kind" names: the fields of pressure.Report, harm.Report and so
// on. Amounts are bytes, times are RFC 3339, durations are in the unit that the member's name has.
//
// The documents that are committed are in this directory. They have base names instead of paths (see
// [Document.Publish]). Tables whose runs were not kept are in the directory [CopiedDir] below (see [ReadCopied]).
package results

// This file defines the document of a series, and makes one.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"time"

	"tensorcast/internal/cli"
	"tensorcast/internal/host"
)

const (
	// Schema is the name of the documents' schema.
	Schema = "tensorcast.result"
	// Version is the version of the schema that this package writes, and the only one that it reads.
	Version = 1
)

// Document is the result of one series. It is not safe for concurrent use.
type Document struct {
	Schema  string `json:"schema"`
	Version int    `json:"version"`
	Kind    Kind   `json:"kind"` // which instrument measured
	// Started is when the series began.
	Started time.Time `json:"started"`
	// Interrupted says that runs are missing, because the series was ended early.
	Interrupted bool `json:"interrupted,omitempty"`
	// Command is the command line in the shell's syntax.
	Command string `json:"command"`
	// Build is what was run.
	Build   Build     `json:"build"`
	Machine host.Info `json:"machine"`
	// Disk is nil if the instrument measures no disk.
	Disk *Disk `json:"disk,omitempty"`
	// Told says which members somebody has told who imported the report of a build that did not write them itself;
	// empty if the instrument wrote all of them.
	Told string `json:"told,omitempty"`
	// BaseNames says that paths were replaced by their last parts.
	BaseNames bool `json:"base_names,omitempty"`
	// Report is the instrument's own report, with the raw figures of every run.
	Report json.RawMessage `json:"report"`
}

// Build says what measured.
type Build struct {
	// Commit is the commit of the build in hexadecimal, or a beginning of it; empty if the build does not know it.
	Commit string `json:"commit"`
	// Modified says that the build had changes that were not committed.
	Modified bool `json:"modified,omitempty"`
	// Go is the version of Go; empty if it is not known.
	Go string `json:"go,omitempty"`
}

// Disk is the disk that the model is on.
type Disk struct {
	Name string `json:"name"`
	// ReadaheadKiB is the disk's readahead before the series.
	ReadaheadKiB int `json:"readahead_kib"`
	// Readings are what the disk delivered when nothing else read, in bytes per second, in chronological order.
	Readings []float64 `json:"readings_bytes_per_second"`
}

// New makes the document of a report that this program has measured. command is its command line in the shell's
// syntax. begun counts if the report does not say when it was started. The report is encoded as JSON.
func New(kind Kind, report any, command string, begun time.Time) (*Document, error) {
	data, err := encode(report)
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	d := &Document{Schema: Schema, Version: Version, Kind: kind, Started: begun, Command: command,
		Build: Build{Go: runtime.Version()}, Machine: host.Read(), Report: data}
	d.Build.Commit, d.Build.Modified = cli.Commit()
	if err := d.deriveFromReport(); err != nil {
		return nil, err
	}
	return d, nil
}

// Import makes the document of a report that an older build has saved without one. The commit and the command are
// known from whoever imports it, and the document says so. It fails if the report does not say when and on which
// machine it was measured, because nobody can be believed about that.
func Import(kind Kind, report []byte, command, commit string) (*Document, error) {
	var peeked facts
	if err := json.Unmarshal(report, &peeked); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotDocument, err)
	}
	if peeked.Started.IsZero() || peeked.Host == nil {
		return nil, fmt.Errorf("%w: the report does not say when or on which machine it was measured", ErrNotDocument)
	}
	d := &Document{Schema: Schema, Version: Version, Kind: kind, Command: command, Build: Build{Commit: commit},
		Told:   "The commit and the command were told by whoever imported the report.",
		Report: bytes.TrimSpace(report)}
	if err := d.deriveFromReport(); err != nil {
		return nil, err
	}
	return d, d.check()
}

// Replace returns the same document with another report of the same series, for instance one whose figures were
// computed again from the same runs.
func (d *Document) Replace(report any) (*Document, error) {
	data, err := encode(report)
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	again := *d
	again.Report = data
	return &again, again.deriveFromReport()
}

// facts are what most reports say of their series, under the names that the instruments have in common.
type facts struct {
	Started     time.Time  `json:"started"`
	Host        *host.Info `json:"host"`
	Interrupted bool       `json:"interrupted"`
	Disk        *struct {
		Name         string `json:"name"`
		ReadaheadKiB int    `json:"readahead_kib_before"`
	} `json:"disk"`
	Readings []struct {
		Result struct {
			Best struct {
				BytesPerSecond float64 `json:"bytes_per_second"`
			} `json:"best"`
		} `json:"result"`
	} `json:"disk_readings"`
}

// deriveFromReport sets the members that the report says itself. Those that it does not say stay.
func (d *Document) deriveFromReport() error {
	var f facts
	if err := json.Unmarshal(d.Report, &f); err != nil {
		return fmt.Errorf("%w: its report: %w", ErrNotDocument, err)
	}
	if !f.Started.IsZero() {
		d.Started = f.Started
	}
	d.Started = d.Started.UTC().Round(0)
	if f.Host != nil && *f.Host != (host.Info{}) {
		d.Machine = *f.Host
	}
	d.Interrupted, d.Disk = f.Interrupted, nil
	if f.Disk != nil {
		d.Disk = &Disk{Name: f.Disk.Name, ReadaheadKiB: f.Disk.ReadaheadKiB, Readings: []float64{}}
		for _, r := range f.Readings {
			d.Disk.Readings = append(d.Disk.Readings, r.Result.Best.BytesPerSecond)
		}
	}
	return nil
}

// Write writes the document as indented JSON.
func (d *Document) Write(w io.Writer) error { return cli.WriteJSON(w, d) }

// encode encodes a value as JSON, with <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
