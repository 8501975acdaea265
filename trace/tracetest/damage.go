package tracetest

// This file damages captures at random: bits and lengths, pieces in wrong places, files of other
// captures, numbers of capture.json, and values within tables that stay well-formed otherwise.

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

// Write makes a damaged capture in dir, which must be empty, and returns a description of the damage.
// The same seed gives the same damage.
func (d *Damager) Write(dir string, seed uint64) (done string, err error) {
	m := &mutation{Rand: rand.New(rand.NewPCG(seed, 0)), bases: d.bases, files: map[string][]byte{},
		special: map[string]func(string) error{}}
	for name, data := range m.pickBase() {
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

// mutation is a damaged capture in the making.
type mutation struct {
	*rand.Rand
	bases   []map[string][]byte                // the files of sound captures, by name
	files   map[string][]byte                  // those of the damaged one
	special map[string]func(path string) error // makes something else in place of a file
}

// kinds are the kinds of damage. Some are listed several times, to be chosen more often. do returns what
// it did in particular.
var kinds = []struct {
	name string
	do   func(*mutation) string
}{
	{"bits", (*mutation).flipBits},
	{"bits", (*mutation).flipBits},
	{"cut", (*mutation).cutFile},
	{"splice", (*mutation).spliceFiles},
	{"number", (*mutation).overwriteNumber},
	{"number", (*mutation).overwriteNumber},
	{"head", (*mutation).overwriteHead},
	{"head", (*mutation).overwriteHead},
	{"files", (*mutation).swapFiles},
	{"json", (*mutation).editJSON},
	{"json", (*mutation).editJSON},
	{"values", (*mutation).changeValues},
	{"values", (*mutation).changeValues},
	{"values", (*mutation).changeValues},
	{"values", (*mutation).changeValues},
}

func (m *mutation) pickBase() map[string][]byte { return m.bases[m.IntN(len(m.bases))] }

// pickFile picks the name of a file with the suffix. The choice does not depend on the order of the map.
func (m *mutation) pickFile(files map[string][]byte, suffix string) string {
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

// oddNumber returns a number that programs stumble over.
func (m *mutation) oddNumber() int64 {
	odd := [...]int64{
		0, 1, -1, 2, 7, 8, 255, 1 << 15, 1 << 16, 1 << 20, 1 << 24, math.MaxInt32 - 1, math.MaxInt32,
		1 << 31, math.MaxUint32, 1 << 40, 1 << 60, math.MaxInt64, math.MinInt64, math.MinInt32, -8,
		int64(m.Uint64()),
	}
	return odd[m.IntN(len(odd))]
}

func (m *mutation) flipBits() string {
	name := m.pickFile(m.files, "")
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

func (m *mutation) cutFile() string {
	name := m.pickFile(m.files, "")
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

func (m *mutation) spliceFiles() string {
	from, to := m.pickFile(m.files, ""), m.pickFile(m.files, "")
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

// overwriteNumber overwrites a place that may hold a number with an odd one.
func (m *mutation) overwriteNumber() string {
	name := m.pickFile(m.files, ".arrows")
	data := m.files[name]
	if len(data) < 16 {
		return name
	}
	at := m.IntN(len(data)-8) &^ 3
	return m.overwriteAt(name, data, at)
}

func (m *mutation) overwriteAt(name string, data []byte, at int) string {
	n := m.oddNumber()
	if m.IntN(2) == 0 {
		n = int64(binary.LittleEndian.Uint32(data[at:])) + m.oddNumber()%64
	}
	if m.IntN(2) == 0 {
		binary.LittleEndian.PutUint32(data[at:], uint32(n))
	} else {
		binary.LittleEndian.PutUint64(data[at:], uint64(n))
	}
	return fmt.Sprintf("%d at byte %d of %s", n, at, name)
}

// overwriteHead changes a number in the metadata of a message, where lengths are.
func (m *mutation) overwriteHead() string {
	name := m.pickFile(m.files, ".arrows")
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
	return m.overwriteAt(name, data, at)
}

// swapFiles swaps, removes, copies or replaces files.
func (m *mutation) swapFiles() string {
	name := m.pickFile(m.files, "")
	switch m.IntN(7) {
	case 0:
		other := m.pickFile(m.files, "")
		m.files[name], m.files[other] = m.files[other], m.files[name]
		return name + " and " + other
	case 1:
		delete(m.files, name)
		return "without " + name
	case 2:
		segment := strings.TrimSuffix(m.pickFile(m.files, ".arrows"), ".arrows") + fmt.Sprintf(".%04d.arrows",
			m.IntN(4))
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
		base := m.pickBase()
		if other := m.pickFile(base, ""); m.special[other] == nil {
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

// editJSON replaces a number, or another value, of capture.json.
func (m *mutation) editJSON() string {
	data := m.files[trace.MetaFile]
	pattern, to := jsonNumber, fmt.Sprint(m.oddNumber())
	if m.IntN(3) == 0 {
		values := []string{"null", `""`, "[]", "{}", "true", "false", "-1", "1e999",
			`"` + strings.Repeat("x", 1<<m.IntN(16)) + `"`, `"../../etc/passwd"`, `"\u001b[2J"`,
			strings.Repeat("[", 1<<m.IntN(16)), "[" + strings.Repeat("{},", 1<<m.IntN(16)) + "{}]"}
		pattern, to = jsonValue, ": "+values[m.IntN(len(values))]
	}
	matches := pattern.FindAllIndex(data, -1)
	if len(matches) == 0 {
		return ""
	}
	match := matches[m.IntN(len(matches))]
	m.files[trace.MetaFile] = slices.Replace(data, match[0], match[1], []byte(to)...)
	return fmt.Sprintf("%.40q at byte %d", to, match[0])
}

// changeValues changes values, offsets, indices and nulls in a table. The table stays well-formed.
func (m *mutation) changeValues() string {
	name := m.pickFile(m.files, ".arrows")
	isSound := func(base map[string][]byte) bool { return bytes.Equal(base[name], m.files[name]) }
	if name == "" || !slices.ContainsFunc(m.bases, isSound) {
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
		if p := recover(); p != nil { // Arrow's writer panics on some bad offsets
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
			m.changeColumn(rec)
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

// Unpacked returns a table without compression, so that damage in it reaches the reader and not the
// decompressor.
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

// changeColumn overwrites a few values of a column.
func (m *mutation) changeColumn(rec arrow.Record) {
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
			binary.LittleEndian.PutUint64(v[:], uint64(m.oddNumber()))
			copy(b.Bytes()[at:at+width], v[:])
		}
	}
}
