package dataset

// This file describes a run in one row, and makes the columns of the other tables fit a data set.

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"time"

	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// runTable is the name of the table that describes the run.
const runTable = "run"

// withoutModel renames the column that would have the name of a partition.
func withoutModel(batches iter.Seq2[[]tables.Column, error]) iter.Seq2[[]tables.Column, error] {
	return func(yield func([]tables.Column, error) bool) {
		for columns, err := range batches {
			renamed := make([]tables.Column, len(columns))
			for i, c := range columns {
				if c.Name == "model" {
					c.Name = "model_index"
				}
				renamed[i] = c
			}
			if !yield(renamed, err) {
				return
			}
		}
	}
}

// runColumns are the columns of the one row that describes a run. Sizes are bytes, and null where they are not known
// or there is no limit. generation_seconds is the time of the decodes that generated generation_tokens.
func runColumns(ctx context.Context, c *trace.Capture, o Options) ([]tables.Column, error) {
	m := c.Meta
	var generated, ns int64
	for s, err := range c.Steps() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("read the steps: %w", err)
		}
		if s.Phase == tables.PhaseGeneration && s.End != tables.NotObserved {
			generated += int64(s.Tokens)
			ns += s.End - s.Begin
		}
	}
	text := func(name, value string) tables.Column { return tables.Column{Name: name, Values: []string{value}} }
	number := func(name string, n int64) tables.Column { return tables.Column{Name: name, Values: []int64{n}} }
	real := func(name string, x float64) tables.Column { return tables.Column{Name: name, Values: []float64{x}} }
	size := func(name string, n int64) tables.Column {
		values := []*int64{nil}
		if n > 0 {
			values[0] = &n
		}
		return tables.Column{Name: name, Values: values}
	}
	model, memory, disk := largest(m), m.Memory, m.Disk
	if model == nil {
		model = &tables.ModelInfo{}
	}
	if memory == nil {
		memory = &tables.Memory{}
	}
	if disk == nil {
		disk = &tables.Disk{}
	}
	which := disk.Identity
	if o.ForOthers {
		which = ""
	}
	return []tables.Column{
		text("started", m.Started.UTC().Format(time.RFC3339)),
		real("seconds", m.Seconds),
		{Name: "complete", Values: []bool{m.Complete}},
		text("detail", m.Detail),
		number("contexts", int64(m.Contexts)),
		number("steps", int64(m.Steps)),
		number("tokens", int64(m.Tokens)),
		number("generation_tokens", generated),
		real("generation_seconds", time.Duration(ns).Seconds()),
		number("lost", int64(m.Counters.Lost())),
		text("model_file", filepath.Base(model.Path)),
		text("model_fingerprint", model.Fingerprint),
		size("model_bytes", model.Bytes),
		number("model_layers", int64(model.Layers)),
		text("kernel", m.Host.Kernel),
		text("arch", m.Host.Arch),
		text("cpu", m.Host.CPU),
		number("cpus", int64(m.Host.CPUs)),
		size("host_memory_bytes", m.Host.MemoryBytes),
		size("memory_limit_bytes", memory.LimitBytes),
		text("disk", which),
		size("disk_bytes_per_second", int64(disk.BytesPerSecond)),
		size("disk_readahead_bytes", int64(disk.ReadaheadKiB)<<10),
	}, nil
}
