package llama

// This file reads the driver's output with Options.Stream.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Token is a generated token of one sequence. Its times (nanoseconds of CLOCK_MONOTONIC) are those
// of choosing and decoding it; sequences of one context are decoded together and share them.
type Token struct {
	Generation int    `json:"generation"` // number of the generation, from 0
	Context    int    `json:"context"`
	Sequence   int    `json:"sequence"`
	Token      int    `json:"token"` // number of the token within the generation, from 0
	ID         int32  `json:"id"`
	Begin      int64  `json:"begin_ns"`
	End        int64  `json:"end_ns"`
	Text       string `json:"text"` // bytes that are not valid UTF-8 (such as half a character) are U+FFFD
}

// Stream reads what the driver prints with Options.Stream. It stores no tokens, so a run may be of
// any length. It is not safe for concurrent use.
type Stream struct {
	Run   Result // what is known at the start: everything except generations and counts
	lines *bufio.Scanner
	n     int // lines read so far
}

// NewStream waits for the first line, which is printed once the model is loaded and warmed up. If
// the output ends before, the error is [io.ErrUnexpectedEOF]; the driver has written the reason to
// its stderr.
func NewStream(r io.Reader) (*Stream, error) {
	s := &Stream{lines: bufio.NewScanner(r)}
	if err := s.readLine(&s.Run); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("stream of %s: %w", driverName, io.ErrUnexpectedEOF)
	} else if err != nil {
		return nil, err
	}
	return s, nil
}

// Next returns the next token, and [io.EOF] after the last. With Options.CountOps the counts are in Run from then on.
func (s *Stream) Next() (Token, error) {
	var line struct {
		Token
		Nodes *int64           `json:"nodes"`
		Ops   map[string]int64 `json:"ops"`
	}
	if err := s.readLine(&line); err != nil {
		return Token{}, err
	}
	if line.Nodes != nil { // the last line has the counts
		s.Run.Nodes, s.Run.Ops = *line.Nodes, line.Ops
		return Token{}, io.EOF
	}
	return line.Token, nil
}

func (s *Stream) readLine(into any) error {
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
