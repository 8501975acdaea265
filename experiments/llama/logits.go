package llama

// This file reads the predictions that the driver writes with Options.Logits.

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

// LogitsHeader describes a file of predictions. It holds Chunks times Scored predictions, in the order of the text.
type LogitsHeader struct {
	Vocab   int // logits per prediction
	Context int // tokens per chunk; each chunk is decoded from an empty memory
	Chunks  int
	Scored  int // predictions per chunk, as in llama-perplexity: for its tokens from Context/2+1 on
}

// Predictions is the total number of predictions.
func (h LogitsHeader) Predictions() int { return h.Chunks * h.Scored }

// Logits reads what the driver writes with Options.Logits: "TCLOGIT1", the header's four numbers as
// uint32, then for each prediction the actual next token as int32 and the logits as float32, all
// little-endian. It holds one prediction at a time and is not safe for concurrent use.
type Logits struct {
	LogitsHeader
	r      *bufio.Reader
	n      int // predictions read so far
	record []byte
	values []float32
}

const logitsMagic = "TCLOGIT1"

// Limits of a header, far beyond any model and text: a chunk has to fit a batch, and the number of predictions 63 bits.
const (
	mostVocab   = 1 << 24
	mostContext = 1 << 28
)

// NewLogits reads the header. If r is a pipe, it waits for it. If the data end early, the error is
// [io.ErrUnexpectedEOF]; the driver has written the reason to its stderr.
func NewLogits(r io.Reader) (*Logits, error) {
	l := &Logits{r: bufio.NewReaderSize(r, 1<<16)}
	head := make([]byte, len(logitsMagic)+4*4)
	if n, err := io.ReadFull(l.r, head); err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("logits of %s: %w after %d bytes", driverName, io.ErrUnexpectedEOF, n)
	} else if err != nil {
		return nil, fmt.Errorf("logits of %s: %w", driverName, err)
	}
	if string(head[:len(logitsMagic)]) != logitsMagic {
		return nil, fmt.Errorf("logits of %s: they begin with %q, not %q", driverName, head[:len(logitsMagic)],
			logitsMagic)
	}
	field := func(i int) int { return int(binary.LittleEndian.Uint32(head[len(logitsMagic)+4*i:])) }
	l.LogitsHeader = LogitsHeader{Vocab: field(0), Context: field(1), Chunks: field(2), Scored: field(3)}
	if h := l.LogitsHeader; h.Vocab < 1 || h.Vocab > mostVocab || h.Context > mostContext || h.Scored < 1 ||
		h.Scored >= h.Context || h.Chunks < 1 {
		return nil, fmt.Errorf("logits of %s: impossible header %+v", driverName, h)
	}
	l.record = make([]byte, 4+4*l.Vocab)
	l.values = make([]float32, l.Vocab)
	return l, nil
}

// Next returns the next prediction: the actual next token, and the logit of each token of the
// vocabulary, which is valid until the next call. After the last prediction it returns [io.EOF]; if
// the data end early, [io.ErrUnexpectedEOF].
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
		return 0, nil, fmt.Errorf("logits of %s: prediction %d: token %d of a vocabulary of %d", driverName, l.n+1,
			target, l.Vocab)
	}
	for i := range l.values {
		l.values[i] = math.Float32frombits(binary.LittleEndian.Uint32(l.record[4+4*i:]))
	}
	l.n++
	return target, l.values, nil
}

// Score runs the driver and calls read with the predictions, which arrive through a pipe while the
// driver runs. o.TextFile names the text; o.Logits is ignored. If read returns an error, Score ends
// the driver and returns that error. read must read all predictions unless it fails. Other errors
// are as Run's; results that read obtained before such an error are invalid.
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
	w.Close() // only the driver keeps it open, so the pipe ends when the driver does
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", driverName, err)
	}
	pipe := &pipeReader{r: r}
	l, readErr := NewLogits(pipe)
	if readErr == nil {
		readErr = read(l)
	}
	r.Close() // the driver must not block on a pipe that nobody reads
	if readErr != nil && !pipe.ended {
		end()
		_ = cmd.Wait() // it was killed
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", driverName, context.Cause(ctx))
		}
		return nil, readErr
	}
	// If the driver ended early, it has said why.
	if err := driverError(ctx, cmd.Wait(), stderr.String()); err != nil {
		return nil, err
	}
	if readErr != nil {
		return nil, readErr
	}
	return ParseResult(stdout.Bytes())
}

// pipeReader remembers whether the end of the pipe was reached.
type pipeReader struct {
	r     io.Reader
	ended bool
}

func (p *pipeReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.ended = p.ended || err == io.EOF
	return n, err
}
