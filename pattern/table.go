package pattern

// This file makes the pattern table, in which a pattern is exported to files.

import (
	"math"

	"tensorcast/internal/stats"
	"tensorcast/trace/tables"
)

// Row is a row of the pattern table: one read of a phase's reference sequence.
type Row struct {
	Seq    int // position in the phase's reference sequence, from 0
	Tensor *tables.StructureRow
	// RelativeTime is when the read begins: 0 is the beginning of the step's first read, 1 the end
	// of its last. It is the median over the steps that follow the reference, rounded to 1e-6. It
	// never falls as Seq rises if the rows of the access table are in order of time.
	RelativeTime float64
	Phase        tables.Phase
	Op           string
	Bytes        int64 // median over the same steps; in generation they are all equal
}

// Rows returns the pattern table: the reference sequence of each phase that was observed, in the
// order warm-up, prompt, generation.
func (p *Pattern) Rows() []Row {
	var rows []Row
	for phase, ref := range p.reference {
		var (
			at    = make([]float32, len(ref.steps))
			bytes = make([]int64, len(ref.steps))
		)
		for seq, r := range ref.reads {
			for i, step := range ref.steps {
				at[i], bytes[i] = p.Steps[step].at[seq], p.Steps[step].Reads[seq].Bytes
			}
			rows = append(rows, Row{
				Seq: seq, Tensor: &p.Structure[r.Tensor], RelativeTime: math.Round(stats.Median(at)*1e6) / 1e6,
				Phase: tables.Phase(phase), Op: r.Op, Bytes: int64(stats.Median(bytes)),
			})
		}
	}
	return rows
}

// Columns returns the rows as columns for export. offset_bytes and size_bytes are the tensor's
// extent in its file. expert_count is how many experts' slices the tensor holds (0 if none).
func Columns(rows []Row) []tables.Column {
	n := len(rows)
	var (
		seq, layer, experts    = make([]int32, n), make([]int32, n), make([]int32, n)
		name, phase, op, file  = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		offset, size, accessed = make([]int64, n), make([]int64, n), make([]int64, n)
		relative               = make([]float64, n)
	)
	for i, r := range rows {
		seq[i], layer[i], experts[i] = int32(r.Seq), r.Tensor.Layer, r.Tensor.Experts
		name[i], phase[i], op[i], file[i] = r.Tensor.Name, r.Phase.String(), r.Op, r.Tensor.File
		offset[i], size[i], accessed[i] = r.Tensor.Offset, r.Tensor.Size, r.Bytes
		relative[i] = r.RelativeTime
	}
	return []tables.Column{
		{Name: "seq", Values: seq},
		{Name: "tensor_name", Values: name},
		{Name: "offset_bytes", Values: offset},
		{Name: "size_bytes", Values: size},
		{Name: "relative_time", Values: relative},
		{Name: "phase", Values: phase},
		{Name: "op", Values: op},
		{Name: "bytes_accessed", Values: accessed},
		{Name: "layer", Values: layer},
		{Name: "expert_count", Values: experts},
		{Name: "file", Values: file},
	}
}
