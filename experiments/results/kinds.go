package results

// This file has the table of the kinds of series: how the report of each is read again. A new instrument is a new row.

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"tensorcast/experiments/divergence"
	"tensorcast/experiments/harm"
	"tensorcast/experiments/latency"
	"tensorcast/experiments/offload"
	"tensorcast/experiments/overhead"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/soak"
	"tensorcast/fabric/lab/hyper"
)

// Kind says which instrument a series is of. It is the name of lab's subcommand.
type Kind string

// The kinds of series.
const (
	Pressure   Kind = "pressure"
	FirstToken Kind = "firsttoken"
	Overhead   Kind = "overhead"
	Harm       Kind = "harm"
	Soak       Kind = "soak"
	Latency    Kind = "latency"
	Divergence Kind = "divergence"
	Fabric     Kind = "fabric"
	Hyper      Kind = "hyper"
)

// Report is the report of an instrument, for people.
type Report interface {
	WriteMarkdown(io.Writer) error
}

// kinds says how the report of each kind is read from JSON.
var kinds = map[Kind]func([]byte) (Report, error){
	// A negative number leaves the start-up as it was saved.
	Pressure:   func(data []byte) (Report, error) { return pressure.ReadReport(data, -1) },
	FirstToken: decode[pressure.FirstReport],
	Overhead:   decode[overhead.Report],
	Harm:       decode[harm.Report],
	Soak:       decode[soak.Report],
	Latency:    decode[latency.Report],
	Divergence: decode[divergence.Report],
	Fabric:     decode[offload.Report],
	Hyper:      decode[hyper.Report],
}

// decode reads a report that is the JSON of a T.
func decode[T any, P interface {
	*T
	Report
}](data []byte) (Report, error) {
	r := P(new(T))
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Kinds lists the kinds in alphabetical order.
func Kinds() (names []string) {
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		names = append(names, string(k))
	}
	return names
}

// ParseKind returns the kind with a name.
func ParseKind(name string) (Kind, error) {
	if k := Kind(name); kinds[k] != nil {
		return k, nil
	}
	return "", fmt.Errorf("there is no kind %q of series: known are %v", name, Kinds())
}

// Open reads the document's report.
func (d *Document) Open() (Report, error) {
	r, err := kinds[d.Kind](d.Report)
	if err != nil {
		return nil, fmt.Errorf("read the report of kind %s: %w", d.Kind, err)
	}
	return r, nil
}
