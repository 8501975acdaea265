package hidden

// This file saves what a predictor has learned about inputs, for a warm start. What ids tell is learned
// anew.

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"slices"
)

var (
	// ErrOtherModel says that something was learned with other routers, or with other Options.
	ErrOtherModel = errors.New("learned of another model, or with other options")
	// ErrInvalid says that a file holds nothing that was learned, or is damaged, or of another version of
	// this program.
	ErrInvalid = errors.New("nothing that was learned of routers")
)

const (
	magic     = "tcasthid"
	version   = 1 // rises whenever the meaning of a value changes
	maxHeader = 1 << 16
)

// header describes what follows it: float32 values in little-endian order, whose number follows from the
// header, and their CRC-32C.
type header struct {
	Version int    `json:"version"`
	Routers string `json:"routers"` // Routers.ID
	Layers  int    `json:"layers"`
	Experts int    `json:"experts"`
	Kinds   []int  `json:"kinds"` // routers ahead; 0 is attention's input
	Inputs  int    `json:"inputs"`
	Before  int    `json:"before"`
}

func (p *Predictor) makeHeader() header {
	h := header{
		Version: version, Routers: p.routers.ID, Layers: len(p.routers.Blocks), Experts: p.routers.Experts,
		Kinds: p.kinds,
	}
	for l := range p.allLinks() { // all are equally large
		h.Inputs, h.Before = l.inputs, l.previous
	}
	return h
}

// learnedState has everything that is saved, in its order, but for the weights of blends.
func (p *Predictor) learnedState() (all [][]float32) {
	for l := range p.allLinks() {
		all = append(all, l.state()...)
	}
	return append(all, p.recall)
}

func (p *Predictor) blendWeights() (all [][]weight) {
	for _, b := range p.blends {
		all = append(all, b.shared, b.own)
	}
	return all
}

// Save writes what was learned. Errors are those of w.
func (p *Predictor) Save(w io.Writer) error {
	text, err := json.Marshal(p.makeHeader())
	if err != nil {
		return err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	b := bufio.NewWriter(io.MultiWriter(w, sum))
	b.WriteString(magic) // a bufio.Writer keeps its first error
	b.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(text))))
	b.Write(text)
	var buf [4]byte
	float := func(x float32) {
		binary.LittleEndian.PutUint32(buf[:], math.Float32bits(x))
		b.Write(buf[:])
	}
	for _, values := range p.learnedState() {
		for _, x := range values {
			float(x)
		}
	}
	for _, values := range p.blendWeights() {
		for _, x := range values {
			float(x.value)
			float(x.squares)
		}
	}
	if err := b.Flush(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// Load reads what Save has written with the same routers and the same Options. On an error the predictor
// stays what it was. Errors wrap ErrOtherModel or ErrInvalid, or are those of r. While it runs it takes
// as much memory again as the predictor has for learning. Call it between tokens.
func (p *Predictor) Load(r io.Reader) error {
	in := &reader{r: bufio.NewReader(r), sum: crc32.New(crc32.MakeTable(crc32.Castagnoli))}
	if err := in.readHeader(p.makeHeader()); err != nil {
		return err
	}
	state, weights := p.learnedState(), p.blendWeights()
	newState, newWeights := make([][]float32, len(state)), make([][]weight, len(weights))
	for i := range state {
		newState[i] = make([]float32, len(state[i]))
		for j := range newState[i] {
			newState[i][j] = in.readFloat()
		}
		if in.err != nil {
			return in.err
		}
	}
	for i := range weights {
		newWeights[i] = make([]weight, len(weights[i]))
		for j := range newWeights[i] {
			newWeights[i][j] = weight{in.readFloat(), in.readFloat()}
			if newWeights[i][j].squares < 0 {
				in.fail(errors.New("a square is negative"))
			}
		}
		if in.err != nil {
			return in.err
		}
	}
	if err := in.readEnd(); err != nil {
		return err
	}
	next := 0
	for l := range p.allLinks() {
		n := len(l.state())
		if err := l.checkState(newState[next : next+n]); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		next += n
	}
	for i := range state {
		copy(state[i], newState[i])
	}
	for i := range weights {
		copy(weights[i], newWeights[i])
	}
	return nil
}

// reader reads a file. It keeps its first error.
type reader struct {
	r   *bufio.Reader
	sum hash.Hash32
	err error
}

func (in *reader) fail(err error) {
	if in.err == nil {
		in.err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
}

func (in *reader) readBytes(b []byte) {
	if in.err != nil {
		clear(b)
		return
	}
	if _, err := io.ReadFull(in.r, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		in.fail(errors.New("it ends too early"))
	} else if err != nil {
		in.err = err
	}
	in.sum.Write(b)
}

func (in *reader) readFloat() float32 {
	var b [4]byte
	in.readBytes(b[:])
	x := math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
	const most = 1e30
	if !(x >= -most && x <= most) {
		in.fail(errors.New("it has values that are not finite, or too large"))
	}
	return x
}

// readHeader reads the header, and compares it with the one that is expected.
func (in *reader) readHeader(want header) error {
	var begin [len(magic) + 4]byte
	in.readBytes(begin[:])
	if in.err == nil && string(begin[:len(magic)]) != magic {
		in.fail(errors.New("it begins with something else"))
	}
	n := binary.LittleEndian.Uint32(begin[len(magic):])
	if in.err == nil && n > maxHeader {
		in.fail(fmt.Errorf("its header has %d bytes", n))
	}
	if in.err != nil {
		return in.err
	}
	text := make([]byte, n)
	in.readBytes(text)
	if in.err != nil {
		return in.err
	}
	var h header
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&h); err != nil {
		in.fail(fmt.Errorf("its header cannot be read: %.200s", err))
		return in.err
	}
	switch {
	case h.Version != version:
		in.fail(fmt.Errorf("it is of version %d, this program reads %d", h.Version, version))
		return in.err
	case h.Routers != want.Routers:
		return fmt.Errorf("%w: its routers are %.32q, these %.32q", ErrOtherModel, h.Routers, want.Routers)
	case h.Layers != want.Layers || h.Experts != want.Experts || !slices.Equal(h.Kinds, want.Kinds) ||
		h.Inputs != want.Inputs || h.Before != want.Before:
		return fmt.Errorf("%w: it has %d layers with %d experts, %d + %d features", ErrOtherModel, h.Layers,
			h.Experts, h.Inputs, h.Before)
	}
	return nil
}

// readEnd reads the checksum, behind which nothing may follow.
func (in *reader) readEnd() error {
	want := in.sum.Sum(nil)
	var got [crc32.Size]byte
	in.readBytes(got[:])
	if in.err == nil && !bytes.Equal(got[:], want) {
		in.fail(errors.New("its checksum is wrong"))
	}
	if _, err := in.r.ReadByte(); in.err == nil && err == nil {
		in.fail(errors.New("something follows it"))
	}
	return in.err
}
