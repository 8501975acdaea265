package perfetto

// This file decodes what was written with an excerpt of Perfetto's own schema.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// schema has the type and the name of each message's fields, by number, as the excerpt of Perfetto's own
// schema has them.
type schema map[string]map[protowire.Number][2]string // type, name

func readSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile("testdata/excerpt.proto")
	if err != nil {
		t.Fatal(err)
	}
	all, message := schema{}, ""
	field := regexp.MustCompile(`^\s+(?:optional |repeated )?(\w+) (\w+) = (\d+);$`)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := strings.TrimSuffix(strings.TrimPrefix(line, "message "), " {"); strings.HasPrefix(line, "message ") {
			message, all[m] = m, map[protowire.Number][2]string{}
		} else if f := field.FindStringSubmatch(line); f != nil {
			n, err := strconv.Atoi(f[3])
			if err != nil {
				t.Fatal(err)
			}
			all[message][protowire.Number(n)] = [2]string{f[1], f[2]}
		}
	}
	return all
}

// decode turns a message into text as the schema says.
func (s schema) decode(message string, b []byte) (string, error) {
	var parts []string
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		b = b[n:]
		f, ok := s[message][number]
		if !ok {
			return "", fmt.Errorf("%s has no field %d", message, number)
		}
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return "", protowire.ParseError(n)
			}
			if _, nested := s[f[0]]; nested || f[0] == "string" {
				return "", fmt.Errorf("%s.%s is a number", message, f[1])
			}
			b, parts = b[n:], append(parts, fmt.Sprintf("%s=%d", f[1], int64(v)))
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return "", protowire.ParseError(n)
			}
			b = b[n:]
			if f[0] == "string" {
				if !utf8.Valid(v) {
					return "", fmt.Errorf("%s.%s is not UTF-8", message, f[1])
				}
				parts = append(parts, fmt.Sprintf("%s=%q", f[1], v))
				continue
			}
			if _, nested := s[f[0]]; !nested {
				return "", fmt.Errorf("%s.%s is bytes", message, f[1])
			}
			inner, err := s.decode(f[0], v)
			if err != nil {
				return "", err
			}
			parts = append(parts, f[1]+"{"+inner+"}")
		default:
			return "", fmt.Errorf("%s.%s has wire type %d", message, f[1], kind)
		}
	}
	return strings.Join(parts, " "), nil
}

// What is written can be decoded by Perfetto's schema.
func TestSchema(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	p := w.NewProcess(42, "llama\xffcli")
	ops, disk := w.NewThread(p, "ops"), w.NewByteCounter(p, "from disk")
	w.Begin(ops, 1000, "MUL_MAT", Arg{Name: "tensor", Text: "blk.0"}, Arg{Name: "bytes", Int: -1})
	w.End(ops, 2000)
	w.Instant(ops, 2500, "page-in")
	w.Count(disk, -5, 1<<40)
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}
	got, err := readSchema(t).decode("Trace", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	const s = "trusted_packet_sequence_id=1 "
	want := strings.Join([]string{
		"packet{" + s + `track_descriptor{uuid=1 process{pid=42 process_name="llama` + "\uFFFD" + `cli"}}}`,
		"packet{" + s + `track_descriptor{uuid=2 name="ops" parent_uuid=1}}`,
		"packet{" + s + `track_descriptor{uuid=3 name="from disk" parent_uuid=1 counter{unit=3}}}`,
		"packet{timestamp=1000 " + s +
			`track_event{type=1 track_uuid=2 name="MUL_MAT" debug_annotations{name="tensor" string_value="blk.0"} debug_annotations{name="bytes" int_value=-1}}}`,
		"packet{timestamp=2000 " + s + "track_event{type=2 track_uuid=2}}",
		"packet{timestamp=2500 " + s + `track_event{type=3 track_uuid=2 name="page-in"}}`,
		"packet{timestamp=0 " + s + "track_event{type=4 track_uuid=3 counter_value=1099511627776}}",
	}, " ")
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

type full struct{ room int }

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// The first error stays, and nothing is written after it.
func TestError(t *testing.T) {
	f := &full{room: 30}
	w := NewWriter(f)
	p := w.NewProcess(1, "p")
	for range 10 {
		w.Instant(p, 1, "x")
	}
	if !errors.Is(w.Err(), errFull) || f.room < -60 {
		t.Errorf("error %v, room for %d bytes, want %v and no write after it", w.Err(), f.room, errFull)
	}
}
