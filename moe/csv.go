package moe

// This file reads routing traces in CSV, as the project BigMoeOnEdge publishes them ("route_trace v1").

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

const csvMagic = "# route_trace v1"

// ErrNotCSV says that a file does not begin as such a trace does.
var ErrNotCSV = errors.New("no routing trace: it does not begin with \"" + csvMagic + "\"")

// maxLine is how long a line may be, in bytes.
const maxLine = 1 << 12

// csvColumns are those that are read; a file may have more.
var csvColumns = []string{"turn", "phase", "step", "layer", "slot", "expert"}

// ReadCSV reads a trace, compressed by gzip or not:
//
//	# route_trace v1
//	# model=/models/m.gguf n_layer=48 n_expert=128 n_expert_used=6
//	# layer=0 expert_bytes=3059712            (a line per layer)
//	turn,phase,step,layer,slot,expert
//	0,0,0,0,0,49                              (phase: 0 is prompt, 1 decode)
//
// Errors name the line. They wrap ErrNotCSV, ErrNoRoutes, or what reading failed with. What it takes in
// memory is bounded.
func ReadCSV(r io.Reader) (*Trace, error) {
	in := bufio.NewReader(r)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		in = bufio.NewReader(unzipped)
	}
	c := csvReader{layers: map[int32]int64{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if n == 1 && strings.TrimRight(lines.Text(), "\r") != csvMagic {
			return nil, ErrNotCSV
		}
		if err := c.line(strings.TrimRight(lines.Text(), "\r")); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	if n == 0 {
		return nil, ErrNotCSV
	}
	if c.build == nil {
		return nil, ErrNoRoutes
	}
	return c.build.finish()
}

type csvReader struct {
	model      string
	n, e, k    int64 // layers, experts, experts per token
	layers     map[int32]int64
	column     []int // of csvColumns
	build      *builder
	fields     []string
	hasHeading bool
}

func (c *csvReader) line(s string) error {
	switch {
	case strings.HasPrefix(s, "#"):
		return c.comment(s)
	case !c.hasHeading:
		return c.heading(s)
	}
	c.fields = c.fields[:0]
	for field := range strings.SplitSeq(s, ",") {
		c.fields = append(c.fields, field)
	}
	var v [6]int32
	for i, at := range c.column {
		if at >= len(c.fields) {
			return fmt.Errorf("%d fields: %s is missing", len(c.fields), csvColumns[i])
		}
		n, err := strconv.ParseInt(c.fields[at], 10, 32)
		if err != nil {
			return fmt.Errorf("%s is %.40q, want a whole number", csvColumns[i], c.fields[at])
		}
		v[i] = int32(n)
	}
	if v[1] != 0 && v[1] != 1 {
		return fmt.Errorf("phase is %d, want 0 (prompt) or 1 (decode)", v[1])
	}
	return c.build.add(row{
		turn: v[0], phase: Phase(v[1]), step: v[2], layer: v[3], slot: v[4], expert: v[5], id: UnknownID,
	})
}

// comment reads words of the form key=value; those that it does not know are passed over.
func (c *csvReader) comment(s string) error {
	if c.hasHeading {
		return nil
	}
	layer, bytes := int64(-1), int64(-1)
	for _, word := range strings.Fields(s[1:]) {
		key, value, _ := strings.Cut(word, "=")
		numbers := map[string]*int64{
			"n_layer": &c.n, "n_expert": &c.e, "n_expert_used": &c.k, "layer": &layer, "expert_bytes": &bytes,
		}
		if key == "model" {
			c.model = path.Base(value)
		}
		if to := numbers[key]; to != nil {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 || n > maxBytes {
				return fmt.Errorf("%s is %.40q, want a number of 0 to %d", key, value, int64(maxBytes))
			}
			*to = n
		}
	}
	if layer >= 0 && bytes >= 0 {
		if layer >= maxLayers {
			return fmt.Errorf("layer %d, want at most %d", layer, maxLayers-1)
		}
		c.layers[int32(layer)] = bytes
	}
	return nil
}

// heading reads the names of the columns; all of the comments has been read.
func (c *csvReader) heading(s string) error {
	c.hasHeading = true
	names := strings.Split(s, ",")
	for _, want := range csvColumns {
		at := -1
		for i, name := range names {
			if strings.TrimSpace(name) == want {
				at = i
			}
		}
		if at < 0 {
			return fmt.Errorf("the columns are %.100q, and %s is none of them", s, want)
		}
		c.column = append(c.column, at)
	}
	if c.n < 1 || c.n > maxLayers || c.e < 1 || c.e > maxExperts || c.k < 1 || c.k > min(maxChosen, c.e) {
		return fmt.Errorf("the lines above say %d layers, %d experts, %d per token (n_layer, n_expert, "+
			"n_expert_used): want 1 to %d, 1 to %d, 1 to %d",
			c.n, c.e, c.k, maxLayers, maxExperts, maxChosen)
	}
	t := &Trace{Model: c.model, Experts: int(c.e), K: int(c.k)}
	for i := range int32(c.n) {
		t.Layers = append(t.Layers, Layer{Number: i, Bytes: c.layers[i]})
	}
	var err error
	c.build, err = newBuilder(t)
	return err
}
