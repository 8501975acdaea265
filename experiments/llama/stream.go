// This file reads the driver's output as it comes.

package llama

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Token is one generated token of one sequence. Times are nanoseconds of CLOCK_MONOTONIC, of choosing and decoding it; sequences of one
// context are decoded together and share them.
type Token struct {
	Generation int    `json:"generation"` // from 0
	Context    int    `json:"context"`
	Sequence   int    `json:"sequence"`
	Token      int    `json:"token"` // within the generation, from 0
	ID         int32  `json:"id"`
	Begin      int64  `json:"begin_ns"`
	End        int64  `json:"end_ns"`
	Text       string `json:"text"` // bytes that are not valid UTF-8, as half a character is not, are U+FFFD
}

// Stream reads what the driver prints with Options.Stream. It keeps nothing: a run may be as long as it likes. It is not safe for concurrent use.
type Stream struct {
	Run   Result // what is known at the start: everything but generations and counts
	lines *bufio.Scanner
	n     int // lines read
}

// NewStream waits for the first line, which comes when the model is loaded and warmed up. An output that ends before that is an
// [io.ErrUnexpectedEOF]: the driver has said on its stderr why.
func NewStream(r io.Reader) (*Stream, error) {
	s := &Stream{lines: bufio.NewScanner(r)}
	if err := s.line(&s.Run); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("stream of %s: %w", driverName, io.ErrUnexpectedEOF)
	} else if err != nil {
		return nil, err
	}
	return s, nil
}

// Next returns the next token, and [io.EOF] after the last. With Options.CountOps the counts are in Run then.
func (s *Stream) Next() (Token, error) {
	var line struct {
		Token
		Nodes *int64           `json:"nodes"`
		Ops   map[string]int64 `json:"ops"`
	}
	if err := s.line(&line); err != nil {
		return Token{}, err
	}
	if line.Nodes != nil { // the last line
		s.Run.Nodes, s.Run.Ops = *line.Nodes, line.Ops
		return Token{}, io.EOF
	}
	return line.Token, nil
}

func (s *Stream) line(into any) error {
	if !s.lines.Scan() {
		if err := s.lines.Err(); err != nil {
			return fmt.Errorf("stream of %s: %w", driverName, err)
		}
		return io.EOF
	}
	s.n++
	if err := json.Unmarshal(s.lines.Bytes(), into); err != nil {
		return fmt.Errorf("stream of %s, line %d: %w", driverName, s.n, err)
	}
	return nil
}
