package inspect

// This file finds faults in models that package gguf can read.

import (
	"fmt"
	"slices"
	"strings"

	"tensorcast/gguf"
	"tensorcast/internal/visible"
)

// Finding is a fault of a file.
type Finding struct {
	File   string // path
	Tensor string // "" if the finding concerns no single tensor
	Text   string
}

// maxGGMLName is the length in bytes from which ggml rejects tensor names.
const maxGGMLName = 64

// Check reports what gguf accepts but llama.cpp does not, bytes that belong to no tensor, and
// metadata that contradict each other or the tensors. Files that gguf.OpenModel rejects cannot be
// checked. Its error is the finding.
func Check(m *gguf.Model) []Finding {
	c := checker{model: m, first: m.Files[0]}
	for _, f := range m.Files {
		c.checkFile(f)
	}
	c.checkArchitecture()
	c.checkVocabulary()
	if n := c.found - maxFindings; n > 0 {
		c.findings = append(c.findings, Finding{c.first.Path, "", fmt.Sprintf("%d more findings are not listed", n)})
	}
	return c.findings
}

// maxFindings is how many findings are listed: a file may have some in each of 200,000 tensors.
const maxFindings = 10_000

// checker collects the findings about a model.
type checker struct {
	model    *gguf.Model
	first    *gguf.File // the file with the model's metadata
	findings []Finding
	found    int // also those that are not listed
}

func (c *checker) report(f *gguf.File, tensor, format string, args ...any) {
	if c.found++; c.found <= maxFindings {
		c.findings = append(c.findings, Finding{f.Path, tensor, fmt.Sprintf(format, args...)})
	}
}

// tensorAlignment is the multiple in bytes at which ggml's CPU backend wants a buffer of tensors to
// begin (TENSOR_ALIGNMENT in ggml-impl.h). llama.cpp makes the mapping of a file such a buffer, from
// its first tensor on.
const tensorAlignment = 32

// checkFile checks what concerns one file alone.
func (c *checker) checkFile(f *gguf.File) {
	if f.Version == 1 {
		c.report(f, "", "GGUF version 1, which llama.cpp no longer reads")
	}
	if f.BigEndian {
		c.report(f, "", "big endian, which llama.cpp reads on big-endian machines only")
	}
	if n := len(f.Tensors); n > 0 && f.Tensors[0].Offset%tensorAlignment != 0 {
		c.report(f, "", "the tensors begin at byte %d, which is no multiple of %d (general.alignment is %d): llama.cpp "+
			"aborts when it maps the file (--no-mmap reads it)", f.Tensors[0].Offset, tensorAlignment, f.Alignment)
	}
	if !f.InOrder {
		c.report(f, "", "the records of the tensors are not in the order of their data, which llama.cpp refuses")
	}
	for i := range f.Metadata {
		if key := f.Metadata[i].Key; !isText(key) {
			c.report(f, "", "the key %.100q is no printable text, but llama.cpp reads it", key)
		}
	}
	c.checkTypes(f)
	end := f.DataOffset
	for i := range f.Tensors {
		t := &f.Tensors[i]
		c.checkTensor(f, t)
		if t.Offset > end {
			c.report(f, t.Name, "the %d bytes before it, from byte %d, are no tensor's", t.Offset-end, end)
		}
		end = (t.End() + f.Alignment - 1) &^ (f.Alignment - 1)
	}
	switch {
	case f.Size > end:
		c.report(f, "", "the last %d bytes, from byte %d, are no tensor's", f.Size-end, end)
	case f.Size < end && !f.Tensors[len(f.Tensors)-1].Opaque():
		c.report(f, "", "the padding behind the last tensor lacks %d bytes: llama.cpp loads the model, but ggml "+
			"refuses to read all of the file's data at once", end-f.Size)
	}
}

// checkTensor checks the record of one tensor.
func (c *checker) checkTensor(f *gguf.File, t *gguf.Tensor) {
	switch {
	case len(t.Name) >= maxGGMLName:
		c.report(f, t.Name, "the name has %d bytes, llama.cpp refuses %d and more", len(t.Name), maxGGMLName)
	case strings.Contains(t.Name, "\x00"):
		c.report(f, t.Name, "the name has a zero byte, at which llama.cpp takes it to end")
	case t.Name == "":
		c.report(f, t.Name, "the tensor from byte %d has no name, but llama.cpp reads it", t.Offset)
	case !isText(t.Name):
		c.report(f, t.Name, "the name is no printable text, but llama.cpp reads it")
	}
	if i := slices.Index(t.Shape, 0); i > 0 {
		c.report(f, t.Name, "dimension %d is 0: llama.cpp divides by it, and some versions end there", i)
	} else if i == 0 {
		c.report(f, t.Name, "it has no elements, but llama.cpp reads it")
	}
}

// isText reports whether a name can be shown as it is.
func isText(name string) bool { return name != "" && name == visible.Line(name) }

// checkTypes reports the types that llama.cpp refuses, each once with the first of its tensors.
func (c *checker) checkTypes(f *gguf.File) {
	count := map[gguf.Type]int{}
	for i := range f.Tensors {
		count[f.Tensors[i].Type]++
	}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		n := count[t.Type]
		if t.Type.Valid() || n == 0 {
			continue
		}
		count[t.Type] = 0
		c.report(f, t.Name, "%s, which llama.cpp refuses", gguf.DescribeType(t.Type, n))
	}
}

// checkArchitecture compares the tensors with the metadata that describe them.
func (c *checker) checkArchitecture() {
	arch, ok := c.first.String("general.architecture")
	if !ok {
		c.report(c.first, "", "no general.architecture")
		return
	}
	layers := map[int]bool{}
	last := -1
	experts, hasExperts := c.first.Uint(arch + ".expert_count")
	for _, f := range c.model.Files {
		for i := range f.Tensors {
			t := &f.Tensors[i]
			if n := t.Layer(); n >= 0 {
				layers[n] = true
				last = max(last, n)
			}
			// GroveMoE's chunk experts have a count of their own.
			if n := t.Experts(); n > 0 && uint64(n) != experts && !strings.Contains(t.Name, "_chexps.") {
				if hasExperts {
					c.report(f, t.Name, "%d experts, %.100s.expert_count says %d", n, arch, experts)
				} else {
					c.report(f, t.Name, "%d experts, and no %.100s.expert_count", n, arch)
				}
			}
		}
	}
	if len(layers) != last+1 {
		missing := 0
		for layers[missing] {
			missing++
		}
		c.report(c.first, "", "%d layers, the highest is %d: layer %d is missing", len(layers), last, missing)
	}
	if n, ok := c.first.Uint(arch + ".block_count"); ok && n != uint64(last+1) && last >= 0 {
		c.report(c.first, "", "%d layers, %.100s.block_count says %d", last+1, arch, n)
	}
	if used, ok := c.first.Uint(arch + ".expert_used_count"); ok && used > experts {
		c.report(c.first, "", "%.100s.expert_used_count is %d, of %d experts", arch, used, experts)
	}
}

// checkVocabulary compares the lengths of the tokenizer's arrays, which have an entry per token.
func (c *checker) checkVocabulary() {
	tokens := int64(-1)
	for i := range c.first.Metadata {
		if kv := &c.first.Metadata[i]; kv.Key == "tokenizer.ggml.tokens" && kv.Type == gguf.ValueArray {
			tokens = kv.Len
		}
	}
	if tokens < 0 {
		return
	}
	for i := range c.first.Metadata {
		kv := &c.first.Metadata[i]
		switch {
		case kv.Type == gguf.ValueArray && (kv.Key == "tokenizer.ggml.scores" || kv.Key == "tokenizer.ggml.token_type"):
			if kv.Len != tokens {
				c.report(c.first, "", "%.100s has %d elements for %d tokens", kv.Key, kv.Len, tokens)
			}
		case strings.HasPrefix(kv.Key, "tokenizer.ggml.") && strings.HasSuffix(kv.Key, "_token_id"):
			// Some writers use the largest number for "none".
			if id, ok := c.first.Uint(kv.Key); ok && id >= uint64(tokens) && id != 1<<32-1 {
				c.report(c.first, "", "%.100s is %d, there are %d tokens", kv.Key, id, tokens)
			}
		}
	}
}

// FindingsTable returns a row per finding: file, tensor_name and finding.
func FindingsTable(findings []Finding) *Table {
	t := &Table{columns: []column{{"file", text}, {"tensor_name", text}, {"finding", text}}}
	t.each = func(row func([]cell) error) error {
		for _, f := range findings {
			if err := row([]cell{str(f.File), str(f.Tensor), str(f.Text)}); err != nil {
				return err
			}
		}
		return nil
	}
	return t
}

// String formats the finding as one line, whatever the names in it are.
func (f Finding) String() string {
	if f.Tensor == "" {
		return visible.Line(fmt.Sprintf("%s: %s", f.File, f.Text))
	}
	return visible.Line(fmt.Sprintf("%s: tensor %s: %s", f.File, f.Tensor, f.Text))
}
