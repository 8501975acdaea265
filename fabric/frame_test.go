package fabric_test

// This file tests reading frames, in particular malformed ones.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"tensorcast/fabric"
	"tensorcast/fabric/frametest"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

var frameLayouts = []trit.Layout{trit.PT5, trit.PT5Striped, trit.TwoBit, trit.Sliced}

// blocksOf returns the number of blocks of cols columns. The last block may be shorter.
func blocksOf(cols, block int) int { return (cols-1)/block + 1 }

// frameMatrix makes a matrix with random planes: planes[i] of them in term i. The seed determines
// the form and block of its scales.
func frameMatrix(seed uint64, rows, cols int, layout trit.Layout, planes ...int) *fabric.Matrix {
	r := rand.New(rand.NewPCG(seed, 2))
	scales := func(form int) (s fabric.Scales) {
		s.Block = []int{16, 32, 64, 256}[r.IntN(4)]
		halves := func(n int) []uint16 {
			h := make([]uint16, n)
			for i := range h {
				h[i] = uint16(r.Uint32())
			}
			return h
		}
		switch form {
		case 0: // none
			s.Block = 0
		case 1: // halves
			if r.IntN(3) == 0 {
				s.Block = cols + r.IntN(2)*(math.MaxInt-cols)
			}
			s.Half = halves(rows * blocksOf(cols, s.Block))
		case 2: // integers, and halves for 256 columns
			s.Sub, s.Super = make([]int8, rows*blocksOf(cols, s.Block)), halves(rows*blocksOf(cols, 256))
			for i := range s.Sub {
				s.Sub[i] = int8(r.Uint32())
			}
		}
		return s
	}
	m := &fabric.Matrix{
		Rows: rows, Cols: cols, Layout: layout,
		Origin: []gguf.Type{gguf.F32, gguf.Q4_K, gguf.TQ1_0}[seed%3], Exact: seed%2 == 0,
	}
	m.Min = scales(int(seed) % 3)
	row := make([]int8, cols)
	for i, n := range planes {
		t := fabric.Term{Center: int32(r.IntN(17)) - 8, Scales: scales((int(seed) + i) / 3 % 3)}
		for range n {
			plane := make([]byte, 0, rows*layout.RowBytes(cols))
			for range rows {
				for c := range row {
					row[c] = int8(r.IntN(3)) - 1
				}
				plane = plane[:len(plane)+layout.RowBytes(cols)]
				layout.Pack(plane[len(plane)-layout.RowBytes(cols):], row)
			}
			t.Planes = append(t.Planes, plane)
		}
		m.Terms = append(m.Terms, t)
	}
	return m
}

// readFrame reads the next frame of r, and nothing beyond it.
func readFrame(r io.Reader) (name string, m *fabric.Matrix, err error) {
	f := fabric.NewFrameReader(r)
	info, err := f.Next()
	if err != nil {
		return "", nil, err
	}
	if m, err = f.Matrix(0); err != nil {
		return "", nil, err
	}
	return info.Name, m, nil
}

// seal corrects the checksums of a frame. payload is where its payload begins.
func seal(frame []byte, payload int) []byte {
	le := binary.LittleEndian
	table := crc32.MakeTable(crc32.Castagnoli)
	if payload >= 4 && payload <= len(frame)-4 {
		le.PutUint32(frame[payload-4:], crc32.Checksum(frame[:payload-4], table))
		le.PutUint32(frame[len(frame)-4:], crc32.Checksum(frame[payload:len(frame)-4], table))
	}
	return frame
}

func TestFrameRoundTrip(t *testing.T) {
	for seed := range uint64(32) {
		shapes := [][2]int{{1, 1}, {3, 5}, {2, 64}, {5, 100}, {1, 321}, {7, 256}, {2, 1300}, {31, 11}}
		shape := shapes[seed%uint64(len(shapes))]
		planes := [][]int{{1}, {6}, {1, 1, 1}, {2, 16, 3}}[seed/8%4]
		if seed == 0 {
			shape = [2]int{1, 5*fabric.PieceBytes + 7} // a row of two pieces
		}
		var canonical []byte
		for _, layout := range frameLayouts {
			name := fmt.Sprintf("blk.%d.α", seed)
			m := frameMatrix(seed, shape[0], shape[1], layout, planes...)
			frame := frametest.Encode(t, name, m)
			gotName, got, err := readFrame(bytes.NewReader(frame))
			if err != nil || gotName != name || !reflect.DeepEqual(got, m) {
				t.Fatalf("seed %d, %v: error %v\ngot  %q %+v\nwant %q %+v", seed, layout, err, gotName, got, name, m)
			}
			if len(frame)%fabric.FrameAlign != 0 {
				t.Fatalf("a frame has %d bytes, want a multiple of %d", len(frame), fabric.FrameAlign)
			}
			// The layout is a field of the header. It has no influence on anything else.
			frame[52] = 1
			seal(frame, int(binary.LittleEndian.Uint32(frame[16:])))
			if canonical == nil {
				canonical = frame
			} else if !bytes.Equal(canonical, frame) {
				t.Fatalf("seed %d: the frame of %v is\n% x, want\n% x", seed, layout, frame, canonical)
			}
			for _, as := range frameLayouts {
				f := fabric.NewFrameReader(onlyReader{bytes.NewReader(frame)})
				if _, err := f.Next(); err != nil {
					t.Fatal(err)
				}
				want := frameMatrix(seed, shape[0], shape[1], as, planes...)
				if got, err := f.Matrix(as); err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, %v read as %v: error %v\ngot  %+v\nwant %+v", seed, layout, as, err, got, want)
				}
			}
		}
	}
}

// onlyReader hides that a reader can seek.
type onlyReader struct{ io.Reader }

func TestFrameStream(t *testing.T) {
	var stream bytes.Buffer
	var all []*fabric.Matrix
	for i := range 6 {
		m := frameMatrix(uint64(i), i+1, 40*(i+1), frameLayouts[i%4], i+1, 1)
		stream.Write(frametest.Encode(t, fmt.Sprint("tensor ", i), m))
		all = append(all, m)
	}
	whole := stream.Len()
	for skip := range 64 { // a bit for each frame
		for _, r := range []io.Reader{
			bytes.NewReader(stream.Bytes()), onlyReader{bytes.NewReader(stream.Bytes())},
		} {
			f := fabric.NewFrameReader(r)
			total := int64(0)
			for i := range all {
				info, err := f.Next()
				if err != nil {
					t.Fatal(err)
				}
				m := all[i]
				want := &fabric.FrameInfo{
					Name: fmt.Sprint("tensor ", i), Rows: m.Rows, Cols: m.Cols, Layout: m.Layout, Origin: m.Origin,
					Exact: m.Exact, Planes: []int{i + 1, 1}, Bytes: info.Bytes,
				}
				if !reflect.DeepEqual(info, want) {
					t.Fatalf("frame %d: %+v, want %+v", i, info, want)
				}
				total += info.Bytes
				if skip>>i&1 != 0 {
					continue
				}
				if got, err := f.Matrix(0); err != nil || !reflect.DeepEqual(got, m) {
					t.Fatalf("frame %d: error %v\ngot  %+v\nwant %+v", i, err, got, m)
				}
				if _, err := f.Matrix(0); err == nil {
					t.Fatal("a second call of Matrix returned no error, want one")
				}
			}
			for range 2 {
				if _, err := f.Next(); err != io.EOF {
					t.Fatalf("at the end: error %v, want io.EOF", err)
				}
			}
			if total != int64(whole) {
				t.Fatalf("all frames have %d bytes, want %d as the stream", total, whole)
			}
		}
	}
	// The reader leaves what follows a frame to others.
	r := bytes.NewReader(stream.Bytes())
	if _, m, err := readFrame(r); err != nil || !reflect.DeepEqual(m, all[0]) {
		t.Fatalf("first frame: error %v, got %+v, want %+v", err, m, all[0])
	}
	if name, _, err := readFrame(r); err != nil || name != "tensor 1" {
		t.Fatalf("second frame: error %v, name %q, want \"tensor 1\"", err, name)
	}
}

// TestFrameCutOff ends the stream after every number of bytes.
func TestFrameCutOff(t *testing.T) {
	frame := frametest.Encode(t, "x", frameMatrix(4, 3, 70, trit.PT5Striped, 2, 1))
	for n := range frame {
		want := fabric.ErrTruncated
		if n == 0 {
			want = io.EOF
		}
		_, _, err := readFrame(bytes.NewReader(frame[:n]))
		if !errors.Is(err, want) || want != io.EOF && errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes: error %v, want %v", n, err, want)
		}
		for _, r := range []io.Reader{bytes.NewReader(frame[:n]), onlyReader{bytes.NewReader(frame[:n])}} {
			f := fabric.NewFrameReader(r)
			_, err := f.Next()
			if err == nil {
				_, err = f.Next()
			}
			if !errors.Is(err, want) {
				t.Fatalf("%d bytes, skipped: error %v, want %v", n, err, want)
			}
			if _, again := f.Next(); again != err {
				t.Fatalf("%d bytes: the next call returned %v, want %v again", n, again, err)
			}
		}
	}
	broken := errors.New("broken")
	r := io.MultiReader(bytes.NewReader(frame[:len(frame)/2]), errReader{broken})
	if _, _, err := readFrame(r); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the stream, %v", err, broken)
	}
}

type errReader struct{ error }

func (e errReader) Read([]byte) (int, error) { return 0, e.error }

// TestFrameFlips inverts every bit of a frame. If the header was correct, the next frame can still
// be read.
func TestFrameFlips(t *testing.T) {
	m := frameMatrix(5, 2, 33, trit.TwoBit, 1)
	frame := frametest.Encode(t, "x", m)
	size := int(binary.LittleEndian.Uint32(frame[16:]))
	two := append(bytes.Clone(frame), frame...)
	for i := range frame {
		for bit := range 8 {
			two[i] ^= 1 << bit
			f := fabric.NewFrameReader(bytes.NewReader(two))
			_, err := f.Next()
			want := fabric.ErrChecksum
			switch {
			case i < 8:
				want = fabric.ErrNotFrame
			case i < 12:
				want = fabric.ErrFrame
			case i < 14:
				want = fabric.ErrVersion
			case i >= 16 && i < 20:
				// The length of the header determines where its checksum is.
				if !errors.Is(err, fabric.ErrFrame) && !errors.Is(err, fabric.ErrChecksum) &&
					!errors.Is(err, fabric.ErrTruncated) {
					t.Errorf("byte %d, bit %d: error %v, want ErrFrame, ErrChecksum or ErrTruncated", i, bit, err)
				}
				two[i] ^= 1 << bit
				continue
			}
			if i >= size {
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.Matrix(0)
				if info, next := f.Next(); next != nil || info.Name != "x" {
					t.Errorf("byte %d: after %v: the next header has error %v, want frame x", i, err, next)
				} else if got, next := f.Matrix(0); next != nil || !reflect.DeepEqual(got, m) {
					t.Errorf("byte %d: after %v: the next frame is %+v, error %v, want %+v", i, err, got, next, m)
				}
			}
			if !errors.Is(err, want) {
				t.Errorf("byte %d, bit %d: error %v, want %v", i, bit, err, want)
			}
			two[i] ^= 1 << bit
		}
	}
}

// TestFrameMalformed changes fields of a frame, and corrects the checksums.
func TestFrameMalformed(t *testing.T) {
	le := binary.LittleEndian
	m := frameMatrix(3, 3, 70, trit.PT5, 2, 1) // term 0: halves; term 1: halves; no minima
	frame := frametest.Encode(t, "name", m)
	size := int(le.Uint32(frame[16:]))
	planes := size + 64*2 // after two sections of scales
	set16 := func(at int, v uint16) func(b []byte) { return func(b []byte) { le.PutUint16(b[at:], v) } }
	set32 := func(at int, v uint32) func(b []byte) { return func(b []byte) { le.PutUint32(b[at:], v) } }
	set64 := func(at int, v uint64) func(b []byte) { return func(b []byte) { le.PutUint64(b[at:], v) } }
	set8 := func(at int, v byte) func(b []byte) { return func(b []byte) { b[at] = v } }
	rec := func(i int) int { return 64 + 24*i }
	if m.Terms[0].Scales.Half == nil || m.Terms[1].Scales.Half == nil || m.Min.Block != 0 ||
		len(frame) != planes+64*3+64 {
		t.Fatalf("the matrix is not the one that this test expects: %+v, %d bytes, planes at %d", m, len(frame), planes)
	}
	for _, c := range []struct {
		name   string
		change func(b []byte)
		want   error
		text   string
	}{
		{"nothing", func([]byte) {}, nil, ""},
		{"big-endian", func(b []byte) { copy(b[8:], "\x0a\x0b\x0c\x0d") }, fabric.ErrVersion, "big-endian"},
		{"version 0", set16(12, 0), fabric.ErrVersion, "version 0"},
		{"version 2", set16(12, 2), fabric.ErrVersion, "version 2"},
		{"unknown flag", set16(14, 2), fabric.ErrFrame, "reserved"},
		{"header's length 0", set32(16, 0), fabric.ErrFrame, "header of 0"},
		{"header's length odd", set32(16, uint32(size)+1), fabric.ErrFrame, "header of"},
		{"header's length huge", set32(16, 1<<31), fabric.ErrFrame, "header of"},
		{"reserved 20", set32(20, 1), fabric.ErrFrame, "reserved"},
		{"payload shorter", set64(24, le.Uint64(frame[24:])-64), fabric.ErrFrame, "payload"},
		{"payload huge", set64(24, 1<<63+5), fabric.ErrFrame, "payload"},
		{"no rows", set64(32, 0), fabric.ErrFrame, "0 rows"},
		{"rows beyond", set64(32, 1<<31), fabric.ErrFrame, "rows"},
		{"rows far beyond", set64(32, 1<<63), fabric.ErrFrame, "rows"},
		{"more rows", set64(32, 40), fabric.ErrFrame, "payload"},
		{"no columns", set64(40, 0), fabric.ErrFrame, "columns"},
		{"columns beyond", set64(40, math.MaxUint64), fabric.ErrFrame, "columns"},
		{"all rows and columns", func(b []byte) {
			set64(32, 1<<31-1)(b)
			set64(40, 1<<31-1)(b)
		}, fabric.ErrFrame, "scales in blocks"},
		{"no such type", set32(48, 4), fabric.ErrFrame, "type(4)"},
		{"layout 0", set8(52, 0), fabric.ErrFrame, "layout(0)"},
		{"layout 5", set8(52, 5), fabric.ErrFrame, "layout(5)"},
		{"stored as striped", set8(53, 2), fabric.ErrFrame, "striped"},
		{"no terms", set16(54, 0), fabric.ErrFrame, "terms"},
		{"many terms", set16(54, 65535), fabric.ErrFrame, "terms"},
		{"longer name", set16(56, 65), fabric.ErrFrame, "name"},
		{"shorter name", set16(56, 3), fabric.ErrFrame, "after the name"},
		{"no name", func(b []byte) { set16(56, 0)(b); clear(b[rec(3):][:4]) }, fabric.ErrFrame, "UTF-8"},
		{"name not UTF-8", set8(rec(3), 0xff), fabric.ErrFrame, "UTF-8"},
		{"reserved 58", set16(58, 1), fabric.ErrFrame, "reserved"},
		{"reserved 60", set32(60, 1), fabric.ErrFrame, "reserved"},
		{"term without planes", set32(rec(0), 0), fabric.ErrFrame, "0 planes"},
		{"term of 17 planes", set32(rec(0), 17), fabric.ErrFrame, "17 planes"},
		{"term of 2^32-1 planes", set32(rec(0), math.MaxUint32), fabric.ErrFrame, "planes"},
		{"center beyond", set32(rec(0)+4, 1<<30+1), fabric.ErrFrame, "center"},
		{"center below", set32(rec(0)+4, 1<<31), fabric.ErrFrame, "center"},
		{"form 3", set32(rec(0)+8, 3), fabric.ErrFrame, "scales"},
		{"form none with a block", set32(rec(0)+8, 0), fabric.ErrFrame, "scales"},
		{"minima of planes", set32(rec(2), 1), fabric.ErrFrame, "record 2"},
		{"minima with a center", set32(rec(2)+4, 1), fabric.ErrFrame, "record 2"},
		{"minima with a block", set64(rec(2)+16, 16), fabric.ErrFrame, "blocks of 16"},
		{"reserved in a record", set32(rec(1)+12, 1), fabric.ErrFrame, "record 1"},
		{"block 0", set64(rec(0)+16, 0), fabric.ErrFrame, "blocks of 0"},
		{"block 48", set64(rec(0)+16, 48), fabric.ErrFrame, "blocks of 48"},
		{"block beyond", set64(rec(0)+16, 1<<63), fabric.ErrFrame, "blocks of 9"},
		{"after the name", set8(rec(3)+4, 1), fabric.ErrFrame, "after the name"},
		{"padding of a section", set8(planes-1, 1), fabric.ErrFrame, fmt.Sprintf("byte %d of the payload", 127)},
		{"padding of the payload", set8(len(frame)-5, 1), fabric.ErrFrame, "of the payload"},
		{"code 243", set8(planes, 243), trit.ErrInvalid,
			"plane 0 of term 0: row 0, column 0 on: pt5 row of 70 trits, byte 0 is 0xf3"},
		{"code 255", set8(planes+64+2*14+13, 255), trit.ErrInvalid,
			"plane 1 of term 0: row 2, column 0 on: pt5 row of 70 trits, byte 13 is 0xff"},
		{"code 250", set8(planes+2*64+13, 250), trit.ErrInvalid, "plane 0 of term 1: row 0"},
	} {
		b := bytes.Clone(frame)
		c.change(b)
		_, got, err := readFrame(bytes.NewReader(seal(b, size)))
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) ||
			err != nil && (got != nil || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
	// A row of 68 columns has two trits after its last.
	m = frameMatrix(3, 2, 68, trit.PT5, 1)
	frame = frametest.Encode(t, "name", m)
	size = int(le.Uint32(frame[16:]))
	frame[size+64+13+14] = 121 + 27
	_, _, err := readFrame(bytes.NewReader(seal(frame, size)))
	text := "plane 0 of term 0: row 1, column 0 on: pt5 row of 68 trits, byte 13: trit 68 after the last is +1"
	if !errors.Is(err, trit.ErrInvalid) || !strings.Contains(err.Error(), text) {
		t.Errorf("a trit after the last: error %v, want ErrInvalid with %q", err, text)
	}
}

// TestFrameHostile reads short streams whose headers have correct checksums, but claim much data.
func TestFrameHostile(t *testing.T) {
	for _, c := range []struct{ rows, cols, planes int }{
		{1 << 30, 1 << 20, 1}, {1, math.MaxInt32, 16}, {math.MaxInt32, 1, 1}, {1 << 20, 1 << 20, 16},
	} {
		m := &fabric.Matrix{
			Rows: c.rows, Cols: c.cols, Layout: trit.PT5Striped,
			Terms: []fabric.Term{{Planes: make([][]byte, c.planes)}},
		}
		payload, err := fabric.PayloadBytes(m)
		if err != nil {
			t.Fatal(err)
		}
		stream := append(frametest.Header("huge", m, uint64(payload)), bytes.Repeat([]byte{121}, 20_000)...)
		var before, after runtime.MemStats
		for _, r := range []io.Reader{bytes.NewReader(stream), onlyReader{bytes.NewReader(stream)}} {
			runtime.ReadMemStats(&before)
			_, _, err = readFrame(r)
			runtime.ReadMemStats(&after)
			// A row of one column is one byte in the frame and 64 bytes in memory. Growing makes up
			// to a third more garbage.
			limit := uint64(8*len(stream) + 512<<10)
			if c.cols == 1 {
				limit = uint64(64*6*len(stream) + 512<<10)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > limit || !errors.Is(err, fabric.ErrTruncated) {
				t.Errorf("%+v: %d bytes of memory for a stream of %d, want at most %d; error %v, want ErrTruncated",
					c, got, len(stream), limit, err)
			}
		}
	}
}

// TestFrameLimits writes and reads the largest header.
func TestFrameLimits(t *testing.T) {
	planes := make([]int, fabric.MaxFrameTerms)
	for i := range planes {
		planes[i] = 1
	}
	m := frameMatrix(1, 1, 1, trit.PT5, planes...)
	long := strings.Repeat("x", fabric.MaxFrameName)
	name, got, err := readFrame(bytes.NewReader(frametest.Encode(t, long, m)))
	if err != nil || name != long || !reflect.DeepEqual(got, m) {
		t.Errorf("error %v, a name of %d bytes, want %d; got %+v, want %+v", err, len(name), len(long), got, m)
	}
}

// FuzzReadFrame checks that a frame that is accepted is the only frame of its matrix.
func FuzzReadFrame(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(frametest.Encode(f, "t",
			frameMatrix(seed, 2, 30*int(seed+1), frameLayouts[seed%4], 1+int(seed)/3, 1)), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed && len(b) > 20 {
			b = seal(b, int(binary.LittleEndian.Uint32(b[16:])))
		}
		r := bytes.NewReader(b)
		name, m, err := readFrame(r)
		if err != nil {
			for _, want := range []error{
				io.EOF, fabric.ErrNotFrame, fabric.ErrVersion, fabric.ErrTruncated, fabric.ErrChecksum, fabric.ErrFrame,
				trit.ErrInvalid,
			} {
				if errors.Is(err, want) {
					return
				}
			}
			t.Fatalf("error %v, want one of the errors of frames", err)
		}
		read := b[:len(b)-r.Len()]
		if again := frametest.Encode(t, name, m); !bytes.Equal(again, read) {
			t.Fatalf("the matrix that was read is written as % x\nwant % x", again, read)
		}
	})
}

// BenchmarkFrame reports the frame's bytes per second. Ratios of its results show what converting
// on load costs, compared to planes that need no conversion (pt5) and to a checksum alone.
func BenchmarkFrame(b *testing.B) {
	for _, layout := range frameLayouts {
		m := frameMatrix(3, 512, 4096, layout, 4)
		frame := frametest.Encode(b, "x", m)
		b.Run("read/"+layout.String(), func(b *testing.B) {
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				if _, _, err := readFrame(bytes.NewReader(frame)); err != nil {
					b.Fatal(err)
				}
			}
		})
		if layout == trit.PT5 {
			b.Run("checksum", func(b *testing.B) {
				b.SetBytes(int64(len(frame)))
				table := crc32.MakeTable(crc32.Castagnoli)
				for b.Loop() {
					crc32.Checksum(frame, table)
				}
			})
		}
	}
}
