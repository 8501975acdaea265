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

// ErrMixed means that the files of a capture do not belong together.
var ErrMixed = errors.New("the capture's files do not belong together")

const maxTensors = 1 << 18 // of all models; the largest have a few thousand

// readStructure reads the structure table. It is replaced as a whole, so that it is never cut short.
func (c *Capture) readStructure() error {
	for rec, err := range readRecords(filepath.Join(c.Dir, StructureFile), true) {
		if err != nil {
			return err
		}
		if rows := int64(len(c.Structure)) + rec.NumRows(); rows > maxTensors {
			return fmt.Errorf("%s is %w", StructureFile,
				damageError("it has %d tensors, at most %d are possible", rows, maxTensors))
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
			shape                  = checkedColumn[*array.List](b, "shape")
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

// segmentNumbers returns which segments of each table are in the directory, in ascending order.
func (c *Capture) segmentNumbers() (map[string][]int, error) {
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

// survey is what the metadata of a table's file says, without its batches' contents.
type survey struct {
	rows   int64
	models string // the fingerprints of the models when it was begun, see tableMetadata
}

// surveyTable reads the metadata of all messages in a table's file. whole means that the file must not be
// cut short.
func surveyTable(path string, whole bool) (s survey, err error) {
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
			m.err = damageError("it does not begin with its one schema")
			break
		}
		switch msg.kind {
		case ipc.MessageSchema:
			s.models = msg.metadata[metadataModels]
			if v := msg.metadata[metadataVersion]; v != strconv.Itoa(SchemaVersion) {
				m.err = damageError("it has schema version %.20q, and capture.json %d", v, SchemaVersion)
			}
		case ipc.MessageRecordBatch:
			if s.rows += msg.batch.rows; s.rows < 0 {
				m.err = damageError("it has too many rows")
			}
		}
	}
	if err := m.endError(nil, whole); err != nil {
		return s, fmt.Errorf("%s is %w", filepath.Base(path), err)
	}
	return s, nil
}

// compareTables compares the tables with capture.json. A contradiction is an error if the capture is
// complete. Otherwise it becomes one of Doubts, unless a file can only be another capture's.
func (c *Capture) compareTables() error {
	numbers, err := c.segmentNumbers()
	if err != nil {
		return err
	}
	structure, err := surveyTable(filepath.Join(c.Dir, StructureFile), true)
	if err == nil {
		err = c.checkModels(StructureFile, structure.models)
	}
	if err != nil {
		return err
	}
	if err := checkExtents(c.Structure, c.Meta); err != nil {
		return fmt.Errorf("%s: %w: %w: copy the whole capture again, or capture again", c.Dir, ErrMixed, err)
	}
	rows := c.Meta.Segments.DeletedRows // of the access table
	for _, table := range streamFiles {
		if err := c.compareSegments(table, numbers[table]); err != nil {
			return err
		}
		n, err := c.checkSegments(table, numbers[table])
		if err != nil {
			return err
		}
		if table != AccessFile {
			continue
		}
		if rows += n; rows < 0 {
			return fmt.Errorf("%s is %w", table, damageError("it has too many rows"))
		}
	}
	// A killed tracer may have written rows that capture.json does not count yet.
	if listed := c.Meta.Rows; rows < listed || rows > listed && c.Meta.Complete {
		return c.reportContradiction("%s tells of %d rows of the access table, of which %d were deleted, and the "+
			"files hold %d",
			MetaFile, listed, c.Meta.Segments.DeletedRows, rows-c.Meta.Segments.DeletedRows)
	}
	return nil
}

// reportContradiction returns an error if the capture is complete, else it appends to Doubts.
func (c *Capture) reportContradiction(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if c.Meta.Complete {
		return fmt.Errorf("%s: %w: %s: copy the whole capture again, or capture again", c.Dir, ErrMixed, text)
	}
	c.Doubts = append(c.Doubts, text)
	return nil
}

// checkSegments checks the metadata of a table's segments, and returns how many rows they have together.
func (c *Capture) checkSegments(table string, numbers []int) (rows int64, err error) {
	for _, n := range numbers {
		if !c.hasSegment(n) {
			continue
		}
		name := segmentFile(table, n)
		s, err := surveyTable(filepath.Join(c.Dir, name), c.Meta.Complete)
		if errors.Is(err, os.ErrNotExist) {
			continue // a running tracer has deleted it meanwhile
		}
		if err != nil {
			return 0, err
		}
		if err := c.checkModels(name, s.models); err != nil {
			return 0, err
		}
		if rows += s.rows; rows < 0 {
			return 0, fmt.Errorf("%s is %w", name, damageError("it has too many rows"))
		}
	}
	return rows, nil
}

// compareSegments checks which segments of a table there are. Those of page-ins, buffers and routers'
// inputs begin when the first was observed, if ever.
func (c *Capture) compareSegments(table string, numbers []int) error {
	listed := c.Meta.Segments
	from := listed.First
	if table == PageInFile || table == BufferFile || table == HiddenFile {
		from = listed.Last + 1
		if first := slices.IndexFunc(numbers, c.hasSegment); first >= 0 {
			from = min(from, numbers[first])
		}
	}
	for _, n := range numbers {
		switch {
		case c.hasSegment(n):
		case n < listed.First && !c.Meta.Complete: // about to be deleted
		default:
			err := c.reportContradiction("%s is of no segment that %s tells of", segmentFile(table, n), MetaFile)
			if err != nil {
				return err
			}
		}
	}
	for n := from; n <= listed.Last; n++ {
		if _, ok := slices.BinarySearch(numbers, n); !ok {
			return c.reportContradiction("%s is missing", segmentFile(table, n))
		}
	}
	return nil
}

// checkModels checks that a table's file is of this capture's models. models are their fingerprints as
// the file tells them. A file that was begun early may lack the last of the capture's models. In an
// incomplete capture, capture.json may lack the last of the file's.
func (c *Capture) checkModels(file, models string) error {
	all := joinFingerprints(c.Meta)
	isBeginning := func(part, all string) bool {
		return part == "" || all == part || strings.HasPrefix(all, part+",")
	}
	if isBeginning(models, all) || !c.Meta.Complete && isBeginning(all, models) {
		return nil
	}
	return fmt.Errorf("%s: %w: %s is of a model with fingerprint %.100q, %s tells of %.100q: "+
		"copy the whole capture again, or capture again", c.Dir, ErrMixed, file, models, MetaFile, all)
}
