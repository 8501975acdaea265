package trace

// This file reads the structure of a capture, and compares the tables with capture.json.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"

	"tensorcast/trace/tables"
)

// ErrMixed says that the files of a capture do not belong together.
var ErrMixed = errors.New("the capture's files do not belong together")

const maxTensors = 1 << 18 // of all models; the largest have a few thousand

// readStructure reads the structure table. It is replaced as a whole, so that it is never cut short.
func (c *Capture) readStructure() error {
	for rec, err := range records(filepath.Join(c.Dir, StructureFile), true) {
		if err != nil {
			return err
		}
		if rows := int64(len(c.Structure)) + rec.NumRows(); rows > maxTensors {
			return fmt.Errorf("%s is %w", StructureFile,
				damage("it has %d tensors, at most %d are possible", rows, maxTensors))
		}
		rows, err := structureRows(rec)
		if err != nil {
			return fmt.Errorf("%s is %w: %w", StructureFile, ErrDamaged, err)
		}
		c.Structure = append(c.Structure, rows...)
	}
	for i := range c.Structure {
		r := &c.Structure[i]
		if err := checkStructure(r); err != nil {
			return fmt.Errorf("%s is %w: row %d: %w", StructureFile, ErrDamaged, i, err)
		}
		if r.Model < 0 || int(r.Model) > len(c.byName) {
			return fmt.Errorf("%s is %w: row %d: it is of model %d, after those of %d models", StructureFile,
				ErrDamaged, i, r.Model, len(c.byName))
		}
		if int(r.Model) == len(c.byName) {
			c.byName = append(c.byName, map[string]int32{})
		}
		c.byName[r.Model][r.Name] = int32(i)
	}
	return nil
}

func structureRows(rec arrow.Record) ([]tables.StructureRow, error) {
	var rows []tables.StructureRow
	err := columnsIn(rec, structureSchema("").Fields(), func(b *columns) {
		var (
			name, offset, size, typ = b.string("tensor_name"), b.int64("offset_bytes"), b.int64("size_bytes"),
				b.string("type")
			layer, component, file = b.int32("layer"), b.string("component"), b.string("file")
			shape                  = column[*array.List](b, "shape")
			experts, stride, model = b.int32("expert_count"), b.int64("expert_stride_bytes"), b.int32("model")
		)
		if b.err != nil {
			return
		}
		dims := shape.ListValues().(*array.Int64).Int64Values()
		rows = make([]tables.StructureRow, rec.NumRows())
		for i := range rows {
			from, to := shape.ValueOffsets(i)
			rows[i] = tables.StructureRow{
				Name: name.Value(i), Offset: offset.Value(i), Size: size.Value(i), Type: typ.Value(i),
				Layer:     layer.Value(i),
				Component: component.Value(i), File: file.Value(i), Shape: slices.Clone(dims[from:to]),
				Experts: experts.Value(i), ExpertStride: stride.Value(i), Model: model.Value(i),
			}
		}
	})
	return rows, err
}

// numbers are the segments of each table that are in the directory, ascending.
func (c *Capture) numbers() (map[string][]int, error) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("read capture directory: %w", err)
	}
	all := map[string][]int{}
	for _, e := range entries {
		if table, n, ok := segmentOf(e.Name()); ok {
			all[table] = append(all[table], n)
		}
	}
	for _, numbers := range all {
		slices.Sort(numbers)
	}
	return all, nil
}

// survey is what a table's file says without its batches' contents.
type survey struct {
	rows   int64
	models string // the fingerprints of the models when it was begun, see tableMetadata
}

func surveyOf(path string, whole bool) (s survey, err error) {
	m, err := openMessages(path)
	if err != nil {
		return s, err
	}
	defer m.close()
	for first := true; ; first = false {
		msg, err := m.next()
		if err != nil {
			break
		}
		if first != (msg.kind == ipc.MessageSchema) {
			m.err = damage("it does not begin with its one schema")
			break
		}
		switch msg.kind {
		case ipc.MessageSchema:
			s.models = msg.metadata[metadataModels]
			if v := msg.metadata[metadataVersion]; v != strconv.Itoa(SchemaVersion) {
				m.err = damage("it has schema version %.20q, and capture.json %d", v, SchemaVersion)
			}
		case ipc.MessageRecordBatch:
			if s.rows += msg.batch.rows; s.rows < 0 {
				m.err = damage("it has too many rows")
			}
		}
	}
	if err := m.ending(nil, whole); err != nil {
		return s, fmt.Errorf("%s is %w", filepath.Base(path), err)
	}
	return s, nil
}

// compare compares the tables with capture.json. What contradicts a complete capture is an error;
// of an incomplete one it becomes one of Doubts, save what can only be another capture's.
func (c *Capture) compare() error {
	numbers, err := c.numbers()
	if err != nil {
		return err
	}
	doubt := func(format string, args ...any) error {
		if c.Meta.Complete {
			return fmt.Errorf("%s: %w: %s: copy the whole capture again, or capture again", c.Dir, ErrMixed,
				fmt.Sprintf(format, args...))
		}
		c.Doubts = append(c.Doubts, fmt.Sprintf(format, args...))
		return nil
	}
	structure, err := surveyOf(filepath.Join(c.Dir, StructureFile), true)
	if err == nil {
		err = c.sameModels(StructureFile, structure.models)
	}
	if err != nil {
		return err
	}
	if err := checkExtents(c.Structure, c.Meta); err != nil {
		return fmt.Errorf("%s: %w: %w: copy the whole capture again, or capture again", c.Dir, ErrMixed, err)
	}
	rows := c.Meta.Segments.DeletedRows
	for _, table := range streamFiles {
		if err := c.compareSegments(table, numbers[table], doubt); err != nil {
			return err
		}
		for _, n := range numbers[table] {
			if !c.told(n) {
				continue
			}
			name := segmentFile(table, n)
			s, err := surveyOf(filepath.Join(c.Dir, name), c.Meta.Complete)
			if errors.Is(err, os.ErrNotExist) {
				continue // a running tracer has deleted it meanwhile
			}
			if err != nil {
				return err
			}
			if err := c.sameModels(name, s.models); err != nil {
				return err
			}
			if table == AccessFile {
				if rows += s.rows; rows < 0 {
					return fmt.Errorf("%s is %w", name, damage("it has too many rows"))
				}
			}
		}
	}
	// A killed tracer has written rows of which capture.json does not tell yet.
	if told := c.Meta.Rows; rows < told || rows > told && c.Meta.Complete {
		return doubt("%s tells of %d rows of the access table, of which %d were deleted, and the files hold %d",
			MetaFile, told, c.Meta.Segments.DeletedRows, rows-c.Meta.Segments.DeletedRows)
	}
	return nil
}

// compareSegments checks which segments of a table there are. Those of page-ins, buffers and
// routers' inputs begin when the first was observed, if ever.
func (c *Capture) compareSegments(table string, numbers []int, doubt func(string, ...any) error) error {
	told := c.Meta.Segments
	from := told.First
	if table == PageInFile || table == BufferFile || table == HiddenFile {
		from = told.Last + 1
		if first := slices.IndexFunc(numbers, c.told); first >= 0 {
			from = min(from, numbers[first])
		}
	}
	for _, n := range numbers {
		switch {
		case c.told(n):
		case n < told.First && !c.Meta.Complete: // about to be deleted
		default:
			if err := doubt("%s is of no segment that %s tells of", segmentFile(table, n), MetaFile); err != nil {
				return err
			}
		}
	}
	for n := from; n <= told.Last; n++ {
		if _, ok := slices.BinarySearch(numbers, n); !ok {
			return doubt("%s is missing", segmentFile(table, n))
		}
	}
	return nil
}

// sameModels checks that a table's file was begun when the capture had the first ones of its
// models, or, of an incomplete capture, that capture.json was written when it had the first ones of
// the file's.
func (c *Capture) sameModels(file, models string) error {
	var prints []string
	for _, m := range c.Meta.Models {
		prints = append(prints, m.Fingerprint)
	}
	all := strings.Join(prints, ",")
	begins := func(all, part string) bool { return part == "" || all == part || strings.HasPrefix(all, part+",") }
	if begins(all, models) || !c.Meta.Complete && begins(models, all) {
		return nil
	}
	return fmt.Errorf("%s: %w: %s is of a model with fingerprint %.100q, %s tells of %.100q: copy the whole capture again, or capture again", c.Dir, ErrMixed, file, models, MetaFile, all)
}
