package hidden

// This file keeps what a predictor has learned about inputs in a file, for a warm start. What ids tell is learned anew.

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

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
)

var (
	// ErrOtherModel says that something was learned of other routers, or with other Options.
	ErrOtherModel = errors.New("learned of another model, or with other options")
	// ErrInvalid says that a file holds nothing that was learned, or is damaged, or of another version of this program.
	ErrInvalid = errors.New("nothing that was learned of routers")
)

const (
	magic     = "tcasthid"
	version   = 1 // rises whenever what a value means changes
	maxHeader = 1 << 16
)

// header says what follows it: as many float32 as its numbers make, little endian, and their CRC-32C.
type header struct {
	Version int    `json:"version"`
	Routers string `json:"routers"` // Routers.ID
	Layers  int    `json:"layers"`
	Experts int    `json:"experts"`
	Kinds   []int  `json:"kinds"` // routers ahead; 0 is attention's input
	Inputs  int    `json:"inputs"`
	Before  int    `json:"before"`
}

func (p *Predictor) header() header {
	h := header{Version: version, Routers: p.r.ID, Layers: len(p.r.Blocks), Experts: p.r.Experts, Kinds: p.kinds}
	for _, of := range p.links {
		for _, l := range of {
			if l != nil {
				h.Inputs, h.Before = l.inputs, l.before
			}
		}
	}
	return h
}

// state lists all that is saved, in its order.
func (p *Predictor) state() (all [][]float32) {
	for _, of := range p.links {
		for _, l := range of {
			if l != nil {
				all = append(all, l.state()...)
			}
		}
	}
	return append(all, p.recall)
}

func (p *Predictor) weights() (all [][]weight) {
	for _, b := range p.blends {
		all = append(all, b.shared, b.own)
	}
	return all
}

// Save writes what was learned. Errors are w's.
func (p *Predictor) Save(w io.Writer) error {
	text, err := json.Marshal(p.header())
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
	for _, values := range p.state() {
		for _, x := range values {
			float(x)
		}
	}
	for _, values := range p.weights() {
		for _, x := range values {
			float(x.w)
			float(x.squares)
		}
	}
	if err := b.Flush(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// Load takes what Save has written, of the same routers and with the same Options. On an error, which
// wraps ErrOtherModel or ErrInvalid, or is r's, the predictor is what it was before. It takes as much
// memory as the predictor has learned in for the time that it runs. Call it between tokens.
func (p *Predictor) Load(r io.Reader) error {
	in := &reader{r: bufio.NewReader(r), sum: crc32.New(crc32.MakeTable(crc32.Castagnoli))}
	if err := in.header(p.header()); err != nil {
		return err
	}
	state, weights := p.state(), p.weights()
	newState, newWeights := make([][]float32, len(state)), make([][]weight, len(weights))
	for i := range state {
		newState[i] = make([]float32, len(state[i]))
		for j := range newState[i] {
			newState[i][j] = in.float()
		}
		if in.err != nil {
			return in.err
		}
	}
	for i := range weights {
		newWeights[i] = make([]weight, len(weights[i]))
		for j := range newWeights[i] {
			newWeights[i][j] = weight{in.float(), in.float()}
			if newWeights[i][j].squares < 0 {
				in.fail(errors.New("a square is negative"))
			}
		}
		if in.err != nil {
			return in.err
		}
	}
	if err := in.end(); err != nil {
		return err
	}
	at := 0
	for _, of := range p.links {
		for _, l := range of {
			if l != nil {
				n := len(l.state())
				if err := l.check(newState[at : at+n]); err != nil {
					return fmt.Errorf("%w: %w", ErrInvalid, err)
				}
				at += n
			}
		}
	}
	for i := range state {
		copy(state[i], newState[i])
	}
	for i := range weights {
		copy(weights[i], newWeights[i])
	}
	return nil
}

// SaveFile is Save to a file, which appears whole or not at all.
func (p *Predictor) SaveFile(path string) error { return outfile.Write(path, p.Save) }

// LoadFile is Load from a regular file. Errors name it.
func (p *Predictor) LoadFile(path string) error {
	f, err := regular.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.Load(f); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// reader reads a file. Its first error stays.
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

func (in *reader) bytes(b []byte) {
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

func (in *reader) float() float32 {
	var b [4]byte
	in.bytes(b[:])
	x := math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
	const most = 1e30
	if !(x >= -most && x <= most) {
		in.fail(errors.New("it has values that are not finite, or too large"))
	}
	return x
}

// header reads the header, and compares it.
func (in *reader) header(want header) error {
	var begin [len(magic) + 4]byte
	in.bytes(begin[:])
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
	in.bytes(text)
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

// end reads the checksum, behind which nothing follows.
func (in *reader) end() error {
	want := in.sum.Sum(nil)
	var got [crc32.Size]byte
	in.bytes(got[:])
	if in.err == nil && !bytes.Equal(got[:], want) {
		in.fail(errors.New("its checksum is wrong"))
	}
	if _, err := in.r.ReadByte(); in.err == nil && err == nil {
		in.fail(errors.New("something follows it"))
	}
	return in.err
}
