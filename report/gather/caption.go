package gather

// This file says where, how and when a capture was made.

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/visible"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

// Caption is the line below a capture's figures: the machine, the limit of the target's memory, how and when the
// capture was made, and the target's command. What is not known is left out.
func Caption(meta *tables.Meta) string {
	var parts []string
	add := func(text string, known bool) {
		if known {
			parts = append(parts, text)
		}
	}
	h := meta.Host
	add(fmt.Sprintf("%d CPUs", h.CPUs), h.CPUs > 0)
	add(humanize.IBytes(uint64(max(h.MemoryBytes, 0))), h.MemoryBytes > 0)
	if m := meta.Memory; m != nil && m.LimitBytes > 0 {
		add("limit "+humanize.IBytes(uint64(m.LimitBytes)), true)
	}
	add("Linux "+h.Kernel, h.Kernel != "")
	add("tracer --detail "+meta.Detail, meta.Detail != "")
	add(meta.Started.UTC().Format("2006-01-02"), !meta.Started.IsZero())
	if command := slices.Clone(meta.Command); len(command) > 0 {
		command[0] = filepath.Base(command[0])
		add(strings.Join(command, " "), true)
	}
	return visible.Line(strings.Join(parts, "; "))
}

// Provenance is the same as facts at the head of a report, with the size of one of the capture's models.
func Provenance(meta *tables.Meta, model int32) (facts []report.Fact) {
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, report.Fact{Name: name, Value: visible.Line(value)})
		}
	}
	if int(model) < len(meta.Models) {
		add("model", humanize.IBytes(uint64(max(meta.Models[model].Bytes, 0))))
	}
	if h := meta.Host; h.CPUs > 0 {
		machine := strings.TrimSpace(fmt.Sprintf("%d CPUs %s", h.CPUs, h.CPU))
		if h.MemoryBytes > 0 {
			machine += ", " + humanize.IBytes(uint64(h.MemoryBytes))
		}
		if h.Kernel != "" {
			machine += ", Linux " + h.Kernel
		}
		add("machine", machine)
	}
	if m := meta.Memory; m != nil && m.LimitBytes > 0 {
		add("limit of memory", humanize.IBytes(uint64(m.LimitBytes))+" ("+m.Of+")")
	}
	if d := meta.Disk; d != nil && d.BytesPerSecond > 0 {
		add("disk", fmt.Sprintf("%s/s, reads %d KiB ahead", humanize.IBytes(uint64(d.BytesPerSecond)), d.ReadaheadKiB))
	}
	if !meta.Started.IsZero() {
		add("traced", meta.Started.UTC().Format("2006-01-02 15:04 UTC"))
	}
	add("detail", meta.Detail)
	add("command", strings.Join(meta.Command, " "))
	return facts
}
