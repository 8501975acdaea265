// This file reads the predictions that the driver writes.

package llama

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
)

// LogitsHeader says what a file of predictions holds: Chunks times Scored of them, in the order of the text.
type LogitsHeader struct {
	Vocab   int // logits of each prediction
	Context int // tokens of a chunk, of which each begins with an empty memory
	Chunks  int
	Scored  int // predictions of a chunk, as llama-perplexity scores them: of its tokens from Context/2+1 on
}

// Predictions is how many there are in all.
func (h LogitsHeader) Predictions() int { return h.Chunks * h.Scored }

// Logits reads what the driver writes with Options.Logits: "TCLOGIT1", the header's four numbers as uint32, then for each prediction the token
// that does come as int32 and the logits as float32, all little-endian. It holds one prediction and is not safe for concurrent use.
type Logits struct {
	LogitsHeader
	r      *bufio.Reader
	n      int // predictions read
	record []byte
	values []float32
}

const logitsMagic = "TCLOGIT1"

// Bounds of a header, far beyond any model and text: a chunk has to fit a batch, and the predictions 63 bits.
const (
	mostVocab   = 1 << 24
	mostContext = 1 << 28
)

// NewLogits reads the header; of a pipe it waits for it. An output that ends before that is an [io.ErrUnexpectedEOF]: the driver has said on its
// stderr why.
func NewLogits(r io.Reader) (*Logits, error) {
	l := &Logits{r: bufio.NewReaderSize(r, 1<<16)}
	head := make([]byte, len(logitsMagic)+4*4)
	if n, err := io.ReadFull(l.r, head); err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("logits of %s: %w after %d bytes", driverName, io.ErrUnexpectedEOF, n)
	} else if err != nil {
		return nil, fmt.Errorf("logits of %s: %w", driverName, err)
	}
	if string(head[:len(logitsMagic)]) != logitsMagic {
		return nil, fmt.Errorf("logits of %s: they begin with %q, not %q", driverName, head[:len(logitsMagic)], logitsMagic)
	}
	field := func(i int) int { return int(binary.LittleEndian.Uint32(head[len(logitsMagic)+4*i:])) }
	l.LogitsHeader = LogitsHeader{Vocab: field(0), Context: field(1), Chunks: field(2), Scored: field(3)}
	if h := l.LogitsHeader; h.Vocab < 1 || h.Vocab > mostVocab || h.Context > mostContext || h.Scored < 1 || h.Scored >= h.Context || h.Chunks < 1 {
		return nil, fmt.Errorf("logits of %s: impossible header %+v", driverName, h)
	}
	l.record = make([]byte, 4+4*l.Vocab)
	l.values = make([]float32, l.Vocab)
	return l, nil
}

// Next returns the next prediction: the token that came, and the logit of each token of the vocabulary, which is valid until the next call. After the
// last it returns [io.EOF], and for what ends before that [io.ErrUnexpectedEOF].
func (l *Logits) Next() (target int32, logits []float32, err error) {
	if l.n == l.Predictions() {
		return 0, nil, io.EOF
	}
	if _, err := io.ReadFull(l.r, l.record); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, fmt.Errorf("logits of %s: prediction %d of %d: %w", driverName, l.n+1, l.Predictions(), err)
	}
	target = int32(binary.LittleEndian.Uint32(l.record))
	if target < 0 || int(target) >= l.Vocab {
		return 0, nil, fmt.Errorf("logits of %s: prediction %d: token %d of a vocabulary of %d", driverName, l.n+1, target, l.Vocab)
	}
	for i := range l.values {
		l.values[i] = math.Float32frombits(binary.LittleEndian.Uint32(l.record[4+4*i:]))
	}
	l.n++
	return target, l.values, nil
}

// Score runs the driver and calls read with the predictions as they come, through a pipe: o.TextFile names the text, o.Logits is not used. If read
// returns an error, Score ends the driver and returns that error; it may return before the end in no other way. Otherwise errors are as Run's; what
// read did before one is to be forgotten.
func (in *Installation) Score(ctx context.Context, o Options, read func(*Logits) error) (*Result, error) {
	running, end := context.WithCancel(ctx)
	defer end()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", driverName, err)
	}
	o.Logits = "/dev/fd/3"
	cmd := in.Command(running, o)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &stdout, &stderr, []*os.File{w}
	err = cmd.Start()
	w.Close() // the driver has its own: what it does not write ends the pipe
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", driverName, err)
	}
	pipe := &pipeReader{r: r}
	l, readErr := NewLogits(pipe)
	if readErr == nil {
		readErr = read(l)
	}
	r.Close() // a driver that is not read to its end does not wait for it
	if readErr != nil && !pipe.ended {
		end()
		_ = cmd.Wait() // it was killed
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", driverName, context.Cause(ctx))
		}
		return nil, readErr
	}
	// A driver that ended too early says why.
	if err := failure(ctx, cmd.Wait(), stderr.String()); err != nil {
		return nil, err
	}
	if readErr != nil {
		return nil, readErr
	}
	return ParseResult(stdout.Bytes())
}

// pipeReader knows whether the writer has closed the pipe.
type pipeReader struct {
	r     io.Reader
	ended bool
}

func (p *pipeReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.ended = p.ended || err == io.EOF
	return n, err
}
