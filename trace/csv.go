package trace

// This file prints accesses as CSV while they are captured.

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

// csvStream prints a line per row of the access table: timestamp (seconds since the capture began,
// nine decimals), token, tensor_name, data_ptr (hexadecimal), bytes_accessed. Lines are buffered
// until flush.
type csvStream struct {
	w    *csv.Writer
	line [5]string
	text []byte
}

func newCSVStream(w io.Writer) (*csvStream, error) {
	s := &csvStream{w: csv.NewWriter(w)}
	if err := s.w.Write([]string{"timestamp", "token", "tensor_name", "data_ptr", "bytes_accessed"}); err != nil {
		return nil, fmt.Errorf("write CSV: %w", err)
	}
	return s, s.flush()
}

func (s *csvStream) writeAccess(a *tables.Access, tensor string) error {
	s.text = appendSeconds(s.text[:0], a.Timestamp)
	s.line[0] = string(s.text)
	s.line[1] = strconv.Itoa(int(a.Token))
	s.line[2] = gguf.SpreadsheetCell(tensor)
	s.line[3] = string(strconv.AppendUint(append(s.text[:0], "0x"...), a.DataPtr, 16))
	s.line[4] = strconv.FormatInt(a.Bytes, 10)
	if err := s.w.Write(s.line[:]); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

func (s *csvStream) flush() error {
	s.w.Flush()
	if err := s.w.Error(); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// appendSeconds appends ns nanoseconds as seconds with nine decimals.
func appendSeconds(b []byte, ns int64) []byte {
	if ns < 0 {
		b, ns = append(b, '-'), -ns
	}
	b = strconv.AppendInt(b, ns/1e9, 10)
	b = append(b, '.')
	at := len(b)
	b = append(b, "000000000"...)
	for i, rest := at+8, ns%1e9; i >= at; i, rest = i-1, rest/10 {
		b[i] = byte('0' + rest%10)
	}
	return b
}
