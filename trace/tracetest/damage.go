package tracetest

// This file damages captures, in ways that look at their form: bits and lengths, pieces in wrong
// places, files of other captures, numbers of capture.json, and values within tables that are
// well-formed otherwise.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"golang.org/x/sys/unix"

	"tensorcast/trace"
)

// Damager makes damaged copies of captures.
type Damager struct {
	bases []map[string][]byte // the files of each
}

// NewDamager reads the captures that are to be damaged.
func NewDamager(dirs ...string) (*Damager, error) {
	d := &Damager{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		base := map[string][]byte{}
		for _, e := range entries {
			if base[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		}
		d.bases = append(d.bases, base)
	}
	return d, nil
}

// Write makes a damaged capture in dir, which must be empty, and says what was done. It is the same
// for the same seed.
func (d *Damager) Write(dir string, seed uint64) (done string, err error) {
	m := &mutation{Rand: rand.New(rand.NewPCG(seed, 0)), bases: d.bases, files: map[string][]byte{},
		special: map[string]func(string) error{}}
	for name, data := range m.base() {
		m.files[name] = slices.Clone(data)
	}
	var log []string
	for range 1 + m.IntN(3) {
		if len(m.files) == 0 {
			break
		}
		kind := kinds[m.IntN(len(kinds))]
		log = append(log, kind.name+" "+kind.do(m))
	}
	for name, data := range m.files {
		if m.special[name] != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return "", err
		}
	}
	for name, make := range m.special {
		if err := make(filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return strings.Join(log, "; "), nil
}

type mutation struct {
	*rand.Rand
	bases   []map[string][]byte
	files   map[string][]byte
	special map[string]func(path string) error // what is there instead of a file
}

// kinds of damage. Each returns what it did in particular.
var kinds = []struct {
	name string
	do   func(*mutation) string
}{
	{"bits", (*mutation).bits},
	{"bits", (*mutation).bits},
	{"cut", (*mutation).cut},
	{"splice", (*mutation).splice},
	{"number", (*mutation).number},
	{"number", (*mutation).number},
	{"head", (*mutation).head},
	{"head", (*mutation).head},
	{"files", (*mutation).swap},
	{"json", (*mutation).json},
	{"json", (*mutation).json},
	{"values", (*mutation).values},
	{"values", (*mutation).values},
	{"values", (*mutation).values},
	{"values", (*mutation).values},
}

func (m *mutation) base() map[string][]byte { return m.bases[m.IntN(len(m.bases))] }

// file picks one, in an order that does not depend on the map's.
func (m *mutation) file(files map[string][]byte, suffix string) string {
	var names []string
	for name := range files {
		if strings.HasSuffix(name, suffix) {
			names = append(names, name)
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return names[m.IntN(len(names))]
}

// odd is a number that programs stumble over.
func (m *mutation) odd() int64 {
	odd := [...]int64{0, 1, -1, 2, 7, 8, 255, 1 << 15, 1 << 16, 1 << 20, 1 << 24, math.MaxInt32 - 1, math.MaxInt32,
		1 << 31, math.MaxUint32, 1 << 40, 1 << 60, math.MaxInt64, math.MinInt64, math.MinInt32, -8, int64(m.Uint64())}
	return odd[m.IntN(len(odd))]
}

func (m *mutation) bits() string {
	name := m.file(m.files, "")
	data := m.files[name]
	if len(data) == 0 {
		return name
	}
	n := 1 + m.IntN(4)
	for range n {
		data[m.IntN(len(data))] ^= 1 << m.IntN(8)
	}
	return fmt.Sprintf("%d in %s", n, name)
}

func (m *mutation) cut() string {
	name := m.file(m.files, "")
	data := m.files[name]
	n := m.IntN(len(data) + 1)
	switch m.IntN(4) {
	case 0:
		m.files[name] = append(data, make([]byte, 8*m.IntN(100))...)
	case 1:
		m.files[name] = data[n:]
	default:
		m.files[name] = data[:n]
	}
	return fmt.Sprintf("%s from %d to %d bytes", name, len(data), len(m.files[name]))
}

func (m *mutation) splice() string {
	from, to := m.file(m.files, ""), m.file(m.files, "")
	source, data := m.files[from], m.files[to]
	if len(source) == 0 {
		return ""
	}
	begin := m.IntN(len(source))
	piece := slices.Clone(source[begin:min(len(source), begin+1+m.IntN(600))])
	at := m.IntN(len(data) + 1)
	if m.IntN(2) == 0 {
		m.files[to] = slices.Insert(data, at, piece...)
	} else {
		copy(data[at:], piece)
	}
	return fmt.Sprintf("%d bytes of %s to byte %d of %s", len(piece), from, at, to)
}

// number writes an odd number where one may be.
func (m *mutation) number() string {
	name := m.file(m.files, ".arrows")
	data := m.files[name]
	if len(data) < 16 {
		return name
	}
	at := m.IntN(len(data)-8) &^ 3
	return m.put(name, data, at)
}

func (m *mutation) put(name string, data []byte, at int) string {
	n := m.odd()
	if m.IntN(2) == 0 {
		n = int64(binary.LittleEndian.Uint32(data[at:])) + m.odd()%64
	}
	if m.IntN(2) == 0 {
		binary.LittleEndian.PutUint32(data[at:], uint32(n))
	} else {
		binary.LittleEndian.PutUint64(data[at:], uint64(n))
	}
	return fmt.Sprintf("%d at byte %d of %s", n, at, name)
}

// head changes a number in the metadata of a message, where lengths are.
func (m *mutation) head() string {
	name := m.file(m.files, ".arrows")
	data := m.files[name]
	var begins []int
	for at := 0; at+16 < len(data); {
		i := bytes.Index(data[at:], []byte{0xff, 0xff, 0xff, 0xff})
		if i < 0 {
			break
		}
		begins = append(begins, at+i)
		at += i + 4
	}
	if begins == nil {
		return name
	}
	begin := begins[m.IntN(len(begins))]
	at := begin + 4*m.IntN(250)
	if at+8 > len(data) {
		at = begin
	}
	if at+8 > len(data) {
		return name
	}
	return m.put(name, data, at)
}

// swap mixes files up.
func (m *mutation) swap() string {
	name := m.file(m.files, "")
	switch m.IntN(7) {
	case 0:
		other := m.file(m.files, "")
		m.files[name], m.files[other] = m.files[other], m.files[name]
		return name + " and " + other
	case 1:
		delete(m.files, name)
		return "without " + name
	case 2:
		segment := strings.TrimSuffix(m.file(m.files, ".arrows"), ".arrows") + fmt.Sprintf(".%04d.arrows", m.IntN(4))
		m.files[segment] = slices.Clone(m.files[name])
		return name + " as " + segment
	case 3:
		special := []func(path string) error{
			func(path string) error { return unix.Mkfifo(path, 0o600) },
			func(path string) error { return os.Mkdir(path, 0o700) },
			func(path string) error { return os.Symlink("/dev/zero", path) },
		}
		delete(m.files, name)
		i := m.IntN(len(special))
		m.special[name] = special[i]
		return fmt.Sprintf("%s as another kind of file, %d", name, i)
	default:
		base := m.base()
		if other := m.file(base, ""); m.special[other] == nil {
			m.files[other] = slices.Clone(base[other])
			return other + " of another capture"
		}
		return ""
	}
}

var (
	jsonNumber = regexp.MustCompile(`-?[0-9]+(\.[0-9]+)?`)
	jsonValue  = regexp.MustCompile(`: ("[^"]*"|-?[0-9.]+|true|false|null|\[\]|\{\})`)
)

// json changes a number, or another value, of capture.json.
func (m *mutation) json() string {
	data := m.files[trace.MetaFile]
	pattern, to := jsonNumber, fmt.Sprint(m.odd())
	if m.IntN(3) == 0 {
		values := []string{"null", `""`, "[]", "{}", "true", "false", "-1", "1e999",
			`"` + strings.Repeat("x", 1<<m.IntN(16)) + `"`, `"../../etc/passwd"`, `"\u001b[2J"`,
			strings.Repeat("[", 1<<m.IntN(16)), "[" + strings.Repeat("{},", 1<<m.IntN(16)) + "{}]"}
		pattern, to = jsonValue, ": "+values[m.IntN(len(values))]
	}
	places := pattern.FindAllIndex(data, -1)
	if len(places) == 0 {
		return ""
	}
	p := places[m.IntN(len(places))]
	m.files[trace.MetaFile] = slices.Replace(data, p[0], p[1], []byte(to)...)
	return fmt.Sprintf("%.40q at byte %d", to, p[0])
}

// values changes values, offsets, indices and nulls in a table, which stays well-formed.
func (m *mutation) values() string {
	name := m.file(m.files, ".arrows")
	sound := func(base map[string][]byte) bool { return bytes.Equal(base[name], m.files[name]) }
	if name == "" || !slices.ContainsFunc(m.bases, sound) {
		return "not of " + name
	}
	out, err := m.rewrite(m.files[name])
	if err != nil {
		return fmt.Sprintf("not of %s: %v", name, err)
	}
	m.files[name] = out
	return "of " + name
}

// rewrite reads a table and writes it again with changes.
func (m *mutation) rewrite(data []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // Arrow's writer looks at offsets
			err = fmt.Errorf("%.100v", p)
		}
	}()
	r, err := ipc.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer r.Release()
	options := []ipc.Option{ipc.WithSchema(r.Schema())}
	if m.IntN(2) == 0 {
		options = append(options, ipc.WithZstd())
	}
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, options...)
	for r.Next() {
		rec := r.Record()
		for range 1 + m.IntN(2) {
			m.change(rec)
		}
		if err := w.Write(rec); err != nil {
			return nil, err
		}
		if m.IntN(20) == 0 { // a batch twice
			if err := w.Write(rec); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Unpacked is a table without compression: what is damaged in it reaches the reader.
func Unpacked(table []byte) ([]byte, error) {
	r, err := ipc.NewReader(bytes.NewReader(table))
	if err != nil {
		return nil, err
	}
	defer r.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(r.Schema()))
	for r.Next() {
		if err := w.Write(r.Record()); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), errors.Join(r.Err(), w.Close())
}

// change overwrites a few values of a column.
func (m *mutation) change(rec arrow.Record) {
	if rec.NumRows() == 0 || rec.NumCols() == 0 {
		return
	}
	data := rec.Column(m.IntN(int(rec.NumCols()))).Data()
	if dict := data.Dictionary(); m.IntN(4) == 0 && dict.(*array.Data) != nil {
		data = dict
	}
	if children := data.Children(); len(children) > 0 && m.IntN(2) == 0 {
		data = children[0]
	}
	width := 4
	if f, ok := data.DataType().(arrow.FixedWidthDataType); ok {
		width = max(f.BitWidth()/8, 1)
	}
	if d, ok := data.DataType().(*arrow.DictionaryType); ok {
		width = d.IndexType.(arrow.FixedWidthDataType).BitWidth() / 8
	}
	for _, b := range data.Buffers() {
		if b == nil || b.Len() < width || m.IntN(2) == 0 {
			continue
		}
		for range 1 + m.IntN(2) {
			at := m.IntN(b.Len()/width) * width
			var v [8]byte
			binary.LittleEndian.PutUint64(v[:], uint64(m.odd()))
			copy(b.Bytes()[at:at+width], v[:])
		}
	}
}
