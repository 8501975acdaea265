package pattern

// This file sums a pattern up, for people and for programs.

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/loadflags"
	"tensorcast/trace/tables"
)

// Summary sums up a run's pattern. Bytes are bytes that ops read, from disk or from memory.
type Summary struct {
	Model       string         `json:"model"`        // file name
	Context     int32          `json:"context"`      // whose steps these are
	Contexts    []ContextReads `json:"contexts"`     // all in the capture
	Tensors     int            `json:"tensors"`      // in the model
	TensorsRead int            `json:"tensors_read"` // by the reference sequence
	// Reads and BytesPerToken are per step, if the steps compute several tokens: these share what is read.
	Reads         int           `json:"reads_per_token"`
	BytesPerToken Spread        `json:"bytes_per_token"`
	Steps         StepCount     `json:"steps"`
	CutShort      []Cut         `json:"cut_short"` // generated tokens that were left out, at most one per thread
	Sequence      Sequences     `json:"sequence"`
	Experts       *Experts      `json:"experts"` // null unless the model has experts
	Top           []TensorReads `json:"top_tensors"`
	// Rereads is what the process read from disk, in all contexts. It is null unless page-ins were
	// observed. Summarize leaves it out.
	Rereads  *tables.Rereads `json:"rereads"`
	Warnings []string        `json:"warnings"` // what makes the verdict doubtful, see the function Warnings
	// Decodes says of what steps the figures are, if these generate nothing. Else it is null.
	Decodes *Decodes `json:"decodes,omitempty"`
}

// Phase returns the phase that the figures are of, see Pattern.Phase.
func (s *Summary) Phase() tables.Phase {
	if s.Decodes != nil {
		return s.Decodes.phase
	}
	return tables.PhaseGeneration
}

// Decodes describes steps that generate nothing: those of a prompt, of embeddings, or of a benchmark.
type Decodes struct {
	Basis  string `json:"basis"` // a sentence, see Pattern.Basis
	Phase  string `json:"phase"`
	Tokens Spread `json:"tokens"` // that a step computes
	Passes Spread `json:"passes"` // through the model, that a step makes

	phase tables.Phase
}

// Spread describes a figure over the generated tokens, or over the steps, that are not cut short.
type Spread struct {
	Median int64 `json:"median"`
	Min    int64 `json:"min"`
	Max    int64 `json:"max"`
}

// StepCount counts the steps of each phase, including those that were cut short.
type StepCount struct {
	Warmup     int `json:"warmup"`
	Prompt     int `json:"prompt"`
	Generation int `json:"generation"`
	Tokens     int `json:"generated_tokens"` // a step generates one for each sequence in its batch
}

// Cut is a generated token that the capture does not hold in full. If the steps generate nothing, it is
// a step.
type Cut struct {
	Token    int32 `json:"token"` // -1 if the steps generate nothing
	Step     int32 `json:"step,omitempty"`
	Reads    int   `json:"reads"`
	Expected int   `json:"expected"` // reads of the reference sequence
}

// TensorReads is how much one tensor is read.
type TensorReads struct {
	Name          string  `json:"tensor_name"`
	Size          int64   `json:"size_bytes"`
	ReadsPerToken float64 `json:"reads_per_token"` // mean over the whole steps of the pattern's phase
	BytesPerToken float64 `json:"bytes_per_token"` // mean over the same
	RunReads      int64   `json:"run_reads"`       // in all steps
	RunBytes      int64   `json:"run_bytes"`       // in all steps
}

// Tensors returns one element per tensor that was read, in descending order of bytes over the run.
// Equals are in the order of Structure.
func (p *Pattern) Tensors() []TensorReads {
	all := make([]TensorReads, len(p.Structure))
	steps := 0
	for i := range p.Steps {
		s := &p.Steps[i]
		whole := s.Phase == p.Phase && !s.CutShort
		if whole {
			steps++
		}
		for _, r := range s.Reads {
			t := &all[r.Tensor]
			t.RunReads++
			t.RunBytes += r.Bytes
			if whole {
				t.ReadsPerToken++
				t.BytesPerToken += float64(r.Bytes)
			}
		}
	}
	for i := range all {
		t := &all[i]
		t.Name, t.Size = p.Structure[i].Name, p.Structure[i].Size
		t.ReadsPerToken /= float64(steps)
		t.BytesPerToken /= float64(steps)
	}
	all = slices.DeleteFunc(all, func(t TensorReads) bool { return t.RunReads == 0 })
	slices.SortStableFunc(all, func(a, b TensorReads) int { return cmp.Compare(b.RunBytes, a.RunBytes) })
	return all
}

// Summarize sums p up. At most top tensors and top differing sequences are listed.
func (p *Pattern) Summarize(meta *tables.Meta, top int) *Summary {
	tensors := p.Tensors()
	s := &Summary{
		Model: ModelName(meta, p.Model), Context: p.Context, Contexts: p.Contexts, CutShort: []Cut{},
		Sequence: p.Sequences(top), Experts: p.Experts(), Top: tensors[:min(top, len(tensors))],
	}
	for i := range p.Structure {
		if p.Structure[i].Model == p.Model {
			s.Tensors++
		}
	}
	ref := p.reference[p.Phase].reads
	s.Reads = len(ref)
	if !p.Generates() {
		s.Decodes = &Decodes{
			Basis: p.Basis(), Phase: p.Phase.String(), Tokens: p.tokensPerStep(), Passes: p.passesPerStep(),
			phase: p.Phase,
		}
	}
	distinct := map[int32]struct{}{}
	for _, r := range ref {
		distinct[r.Tensor] = struct{}{}
	}
	s.TensorsRead = len(distinct)
	var bytes []int64
	for i := range p.Steps {
		step := &p.Steps[i]
		switch step.Phase {
		case tables.PhaseWarmup:
			s.Steps.Warmup++
		case tables.PhasePrompt:
			s.Steps.Prompt++
		case tables.PhaseGeneration:
			s.Steps.Generation++
			s.Steps.Tokens += int(step.Batch)
		}
		switch {
		case step.Phase != p.Phase:
		case step.CutShort:
			cut := Cut{Token: step.Token, Reads: len(step.Reads), Expected: len(ref)}
			if !p.Generates() {
				cut.Step = step.Number
			}
			s.CutShort = append(s.CutShort, cut)
		default:
			bytes = append(bytes, step.Bytes)
		}
	}
	s.BytesPerToken = Spread{Median: int64(stats.Median(bytes)), Min: slices.Min(bytes), Max: slices.Max(bytes)}
	s.Warnings = Warnings(meta)
	return s
}

// ModelName returns the file name of one of a capture's models.
func ModelName(meta *tables.Meta, model int32) string {
	if model < 0 || int(model) >= len(meta.Models) {
		return fmt.Sprintf("model %d", model)
	}
	return filepath.Base(meta.Models[model].Path)
}

// Warnings returns the gaps of a capture according to its description, one line each. The result is
// not nil.
func Warnings(meta *tables.Meta) []string {
	w := []string{}
	c := meta.Counters
	if n := c.Lost(); n > 0 {
		w = append(w, fmt.Sprintf("%s lost while capturing: sequences may have holes, and a difference between "+
			"tokens may be one", formatCount(int(n), "event")))
	}
	if n := c.Faults + c.Unresolved + c.Clipped; n > 0 {
		w = append(w, fmt.Sprintf("%s not read in full while capturing (%d faults, %d without a mapping, %d "+
			"clipped): sequences may have holes",
			formatCount(int(n), "event"), c.Faults, c.Unresolved, c.Clipped))
	}
	if o := meta.Outside; o.Tensors > 0 {
		program := loadflags.OfWords(meta.Command, meta.Libraries...)
		w = append(w, fmt.Sprintf("%s (%s, for example %s) read from memory outside the model file: the target has "+
			"copies of them, which take as much memory again, and the file's pages are not used; to see them used, %s; "+
			"only for that, because %s",
			formatCount(o.Tensors, "tensor"), humanize.IBytes(uint64(max(o.Bytes, 0))), o.Example,
			program.Advise(loadflags.KeepLayout, loadflags.MapFile), loadflags.LayoutGain))
	}
	for _, line := range meta.LayersText() {
		w = append(w, line+": what is computed elsewhere is not in the pattern")
	}
	if d := meta.Segments; d.Deleted > 0 {
		w = append(w,
			fmt.Sprintf("the oldest %s of the capture (%s of the access table) were deleted while capturing",
				formatCount(d.Deleted, "segment"), formatCount(int(d.DeletedRows), "row")))
	}
	if !meta.Complete {
		w = append(w, "the tracer did not end in order: the capture holds what was written until then, and its "+
			"last token may be cut short")
	}
	return w
}

// WriteText writes the summary for people to read. Warnings are not part of it.
func (s *Summary) WriteText(w io.Writer) error {
	about := &tabular.Table{Columns: tabular.Left("", "")}
	line := func(what, format string, args ...any) {
		about.Rows = append(about.Rows, []string{what, fmt.Sprintf(format, args...)})
	}
	line("model", "%s: %s, %d of them read for each %s", s.Model, formatCount(s.Tensors, "tensor"), s.TensorsRead,
		s.unit())
	generated, per := fmt.Sprintf("%d generated tokens", s.Steps.Tokens), "per "+s.unit()
	if s.Decodes == nil && s.Steps.Tokens != s.Steps.Generation { // the tokens of a batch share what is read for it
		generated, per = fmt.Sprintf("%d that generate %d tokens", s.Steps.Generation, s.Steps.Tokens), "per step"
	}
	line("steps", "%d warm-up, %d prompt, %s", s.Steps.Warmup, s.Steps.Prompt, generated)
	if s.Decodes != nil {
		line("decodes", "of %s", formatSizes(s.Decodes.Tokens))
	}
	for _, c := range s.CutShort {
		what, number := "token", c.Token
		if s.Decodes != nil {
			what, number = "step", c.Step
		}
		line("", "%s %d is cut short after %d of %s, and left out of what follows", what, number, c.Reads,
			formatCount(c.Expected, "read"))
	}
	bytes := s.BytesPerToken.String()
	if d := s.Decodes; d != nil {
		// Decodes of a size read other rows of the embedding, which is too little to be seen.
		if humanize.IBytes(uint64(s.BytesPerToken.Min)) == humanize.IBytes(uint64(s.BytesPerToken.Max)) {
			bytes = s.BytesPerToken.median()
		}
		if d.Passes.Max > 1 {
			bytes += ", in " + formatPasses(d.Passes, "pass", "passes")
		}
	}
	reads := formatCount(s.Reads, "read")
	if s.Decodes != nil && s.Decodes.Passes.Min != s.Decodes.Passes.Max {
		reads += " in most"
	}
	line(per, "%s, %s", reads, bytes)
	line("sequence", "%s", s.Sequence)
	for _, d := range s.Sequence.Differences {
		line("", "%s", d)
	}
	if rest := s.Sequence.Distinct - len(s.Sequence.Batches) - len(s.Sequence.Differences); rest > 0 {
		line("", "and %s more", formatCount(rest, "differing sequence"))
	}
	if s.Experts != nil {
		line("experts", "%s", s.Experts)
	}
	if err := (tabular.Document{about}).WriteText(w); err != nil {
		return err
	}
	// Where it is known that memory held what was read again, there is nothing to tell the tensors by.
	if s.Rereads == nil || s.Rereads.RereadBytes > 0 {
		if err := s.writeTop(w); err != nil {
			return err
		}
	}
	if s.Rereads == nil {
		return nil
	}
	fmt.Fprintln(w)
	return s.Rereads.WriteText(w, len(s.Rereads.Tensors))
}

// unit is what the figures are per.
func (s *Summary) unit() string {
	if s.Decodes != nil {
		return "decode"
	}
	return "token"
}

func (s *Summary) writeTop(w io.Writer) error {
	if len(s.Top) == 0 {
		return nil
	}
	fmt.Fprint(w, "\nmost read tensors, from memory or disk, by bytes over the whole run\n")
	table := &tabular.Table{
		Columns: append(tabular.Right("size", "reads/"+s.unit(), "bytes/"+s.unit(), "share", "run total",
			"times its size"), tabular.Left("tensor")...),
	}
	for _, t := range s.Top {
		table.Rows = append(table.Rows, []string{
			humanize.IBytes(uint64(t.Size)), fmt.Sprintf("%.4g", t.ReadsPerToken),
			humanize.IBytes(uint64(t.BytesPerToken)),
			fmt.Sprintf("%.1f %%", 100*ratio(t.BytesPerToken, float64(s.BytesPerToken.Median))),
			humanize.IBytes(uint64(t.RunBytes)), formatTimes(ratio(float64(t.RunBytes), float64(t.Size))), t.Name,
		})
	}
	return (tabular.Document{table}).WriteText(w)
}

// String formats the spread as "1.0 GiB (1104234240 bytes)", with the range if there is one.
func (s Spread) String() string {
	text := s.median()
	if s.Min != s.Max {
		text += fmt.Sprintf(", from %s to %s", humanize.IBytes(uint64(s.Min)), humanize.IBytes(uint64(s.Max)))
	}
	return text
}

func (s Spread) median() string {
	return fmt.Sprintf("%s (%d bytes)", humanize.IBytes(uint64(s.Median)), s.Median)
}

// String returns the verdict as one clause.
func (v Sequences) String() string {
	if v.perDecode {
		return v.describeDecodes()
	}
	of := ""
	if len(v.Batches) > 1 {
		var sizes []string
		for _, b := range v.Batches {
			sizes = append(sizes, fmt.Sprintf("%d of %s", b.Steps, formatCount(b.Tokens, "token")))
		}
		of = fmt.Sprintf(" (each step compared with those of its size: %s)", strings.Join(sizes, ", "))
	}
	switch {
	case v.Tokens == 1:
		return "one generated token only: there is no other to compare it with"
	case v.Steps == 1:
		return "one step only: there is no other to compare it with"
	case v.Identical:
		return fmt.Sprintf("the tensor sequence is identical in all %d generated tokens%s", v.Tokens, of)
	case v.Distinct == v.Steps:
		return fmt.Sprintf("the tensor sequence is different in each of the %d steps that generate%s", v.Steps, of)
	}
	return fmt.Sprintf("the tensor sequence is identical in %d of %d generated tokens%s", v.Following, v.Tokens, of)
}

// describeDecodes returns the verdict on steps that generate nothing.
func (v Sequences) describeDecodes() string {
	of := ""
	if len(v.Batches) > 1 {
		var groups []string
		for _, b := range v.Batches {
			passes := "1 pass"
			if b.Passes > 1 {
				passes = fmt.Sprintf("%d passes", b.Passes)
			}
			groups = append(groups, fmt.Sprintf("%d of %s", b.Steps, passes))
		}
		const named = 8
		if rest := len(groups) - named; rest > 0 {
			groups = append(groups[:named], fmt.Sprintf("%d more kinds", rest))
		}
		of = fmt.Sprintf(" (each compared with those of as many passes: %s)", strings.Join(groups, ", "))
	}
	switch {
	case v.Steps == 1 && len(v.Batches) == 1 && v.Batches[0].Passes > 1:
		return fmt.Sprintf("one decode only: the tensor sequence repeats in its %d passes", v.Batches[0].Passes)
	case v.Steps == 1:
		return "one decode only: there is no other to compare it with"
	case v.Identical:
		return fmt.Sprintf("the tensor sequence is identical in all %d decodes%s", v.Steps, of)
	case v.Distinct == v.Steps:
		return fmt.Sprintf("the tensor sequence is different in each of the %d decodes%s", v.Steps, of)
	}
	return fmt.Sprintf("the tensor sequence is identical in %d of %d decodes%s", v.following, v.Steps, of)
}

// String returns the verdict as one clause.
func (e *Experts) String() string {
	if e.perDecode || e.Touched != nil {
		return e.describeSteps()
	}
	if e.Tokens == 1 {
		return "one token only: there is no other to compare its experts with"
	}
	if e.Identical {
		return "the experts chosen are the same for all tokens"
	}
	text := fmt.Sprintf("the experts chosen differ from token %d on, first in %s; %s", e.FirstToken, e.FirstTensor,
		formatCount(e.Distinct, "different choice"))
	if e.Kept >= 0 {
		text += fmt.Sprintf(", %.0f %% of a token's experts were the previous token's too", 100*e.Kept)
	}
	return text
}

// describeSteps returns the verdict on steps of several tokens, or on such as generate nothing.
func (e *Experts) describeSteps() string {
	what, first := "step", fmt.Sprintf("token %d", e.FirstToken)
	if e.perDecode {
		what, first = "decode", fmt.Sprintf("step %d", e.FirstStep)
	}
	var parts []string
	if t := e.Touched; t != nil {
		text := fmt.Sprintf("a %s reads %d different experts of %d", what, t.Median, t.Of)
		if t.Min != t.Max {
			text += fmt.Sprintf(" (%d to %d)", t.Min, t.Max)
		}
		parts = append(parts, text+", all layers together")
	}
	switch {
	case e.Tokens == 1:
		parts = append(parts, "one "+what+" only: there is no other to compare its experts with")
	case e.Identical:
		parts = append(parts, "they are the same in all "+what+"s")
	default:
		parts = append(parts, fmt.Sprintf("they differ from %s on, first in %s", first, e.FirstTensor),
			formatCount(e.Distinct, "different choice"))
	}
	text := strings.Join(parts, "; ")
	if e.Kept >= 0 && !e.Identical {
		text += fmt.Sprintf(", %.0f %% of a %s's experts were the previous one's too", 100*e.Kept, what)
	}
	return text
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// formatTimes keeps three digits, so that a row of an embedding does not show as 0.
func formatTimes(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
