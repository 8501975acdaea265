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

// ErrNotCSV says that a file does not begin as a routing trace does.
var ErrNotCSV = errors.New("no routing trace: it does not begin with \"" + csvMagic + "\"")

// maxLine is the greatest length of a line in bytes.
const maxLine = 1 << 12

// csvColumns are the columns that are read. A file may have more.
var csvColumns = []string{"turn", "phase", "step", "layer", "slot", "expert"}

// ReadCSV reads a trace, which may be compressed by gzip:
//
//	# route_trace v1
//	# model=/models/m.gguf n_layer=48 n_expert=128 n_expert_used=6
//	# layer=0 expert_bytes=3059712            (a line per layer)
//	turn,phase,step,layer,slot,expert
//	0,0,0,0,0,49                              (phase: 0 is prompt, 1 decode)
//
// Errors name the line. They wrap ErrNotCSV, ErrNoRoutes, or the reader's error. The memory that it takes
// is bounded.
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
		if err := c.readLine(strings.TrimRight(lines.Text(), "\r")); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	if n == 0 {
		return nil, ErrNotCSV
	}
	if c.builder == nil {
		return nil, ErrNoRoutes
	}
	return c.builder.finish()
}

// csvReader makes a trace of the lines of a file.
type csvReader struct {
	model                              string
	layerCount, expertCount, usedCount int64
	layers                             map[int32]int64 // bytes of an expert
	columns                            []int           // where each of csvColumns is
	builder                            *builder
	fields                             []string
	hasHeading                         bool
}

func (c *csvReader) readLine(s string) error {
	switch {
	case strings.HasPrefix(s, "#"):
		return c.readComment(s)
	case !c.hasHeading:
		return c.readHeading(s)
	}
	c.fields = c.fields[:0]
	for field := range strings.SplitSeq(s, ",") {
		c.fields = append(c.fields, field)
	}
	var v [6]int32
	for i, at := range c.columns {
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
	return c.builder.addRow(row{
		turn: v[0], phase: Phase(v[1]), step: v[2], layer: v[3], slot: v[4], expert: v[5], id: UnknownID,
	})
}

// readComment reads words of the form key=value. It skips those that it does not know.
func (c *csvReader) readComment(s string) error {
	if c.hasHeading {
		return nil
	}
	layer, bytes := int64(-1), int64(-1)
	for _, word := range strings.Fields(s[1:]) {
		key, value, _ := strings.Cut(word, "=")
		numbers := map[string]*int64{
			"n_layer": &c.layerCount, "n_expert": &c.expertCount, "n_expert_used": &c.usedCount, "layer": &layer,
			"expert_bytes": &bytes,
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

// readHeading reads the names of the columns, when all comments have been read.
func (c *csvReader) readHeading(s string) error {
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
		c.columns = append(c.columns, at)
	}
	if c.layerCount < 1 || c.layerCount > maxLayers || c.expertCount < 1 || c.expertCount > maxExperts ||
		c.usedCount < 1 || c.usedCount > min(maxChosen, c.expertCount) {
		return fmt.Errorf("the lines above say %d layers, %d experts, %d per token (n_layer, n_expert, "+
			"n_expert_used): want 1 to %d, 1 to %d, 1 to %d",
			c.layerCount, c.expertCount, c.usedCount, maxLayers, maxExperts, maxChosen)
	}
	t := &Trace{Model: c.model, Experts: int(c.expertCount), K: int(c.usedCount)}
	for i := range int32(c.layerCount) {
		t.Layers = append(t.Layers, Layer{Number: i, Bytes: c.layers[i]})
	}
	var err error
	c.builder, err = newBuilder(t)
	return err
}
