package trace

// This file writes a capture directory. Invariant: at any moment each table on disk consists of complete batches, except possibly for the
// last one, and capture.json is a complete document.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"tensorcast/event"
	"tensorcast/trace/tables"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// Writer writes one capture. It is not safe for concurrent use.
type Writer struct {
	dir         string
	fingerprint string // of all models together
	structure   []tables.StructureRow
	names       []int32   // by structure row: index in the dictionary of tensor names, which is the same in all tables
	streams     []*stream // in the order of streamFiles; nil until the table is used
	access      *stream   // the stream of the access table
	rows        int64     // of the access table
	segments    tables.Segments
	segmentRows []int64 // rows of the access table in each segment that exists
}

// Create creates dir (and its parents) and writes the structure table. It replaces an older capture in dir; if dir holds anything else, it
// returns ErrOccupied. Access.Tensor is an index into structure.
func Create(dir string, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
	if err := clearCapture(dir); err != nil {
		return nil, err
	}
	w := &Writer{dir: dir, streams: make([]*stream, len(streamFiles)), segmentRows: []int64{0}}
	meta.Schema = SchemaVersion
	meta.Complete = false
	meta.Segments = w.segments
	if err := w.Extend(meta, structure); err != nil {
		return nil, err
	}
	if err := writeMeta(dir, meta); err != nil {
		return nil, err
	}
	for _, name := range []string{AccessFile, RouteFile, StepFile} {
		if _, err := w.stream(name); err != nil {
			w.abandon()
			return nil, err
		}
	}
	w.access = w.streams[slices.Index(streamFiles, AccessFile)]
	return w, nil
}

// Extend appends rows, the tensors of a model that was added to meta, to the structure table. The table is replaced atomically.
func (w *Writer) Extend(meta *tables.Meta, rows []tables.StructureRow) error {
	var prints []string
	for _, m := range meta.Models {
		prints = append(prints, m.Fingerprint)
	}
	w.fingerprint = strings.Join(prints, ",")
	w.structure = append(w.structure, rows...)
	if err := writeStructure(filepath.Join(w.dir, StructureFile), w.fingerprint, w.structure); err != nil {
		return err
	}
	for _, s := range w.streams {
		if s != nil {
			w.fill(s)
		}
	}
	return nil
}

// fill puts the strings that are known from the start into a table's dictionaries, so that the stream need not replace these later.
func (w *Writer) fill(s *stream) {
	var names []string
	switch s.name {
	case AccessFile, StepFile:
		names = tables.PhaseNames()
	case PageInFile:
		names = event.CauseNames()
	case BufferFile:
		names = tables.BufferKindNames()
	}
	for i, d := range s.dicts {
		if d != nil && s.schema.Field(i).Type == shortDict {
			for _, n := range names {
				d.index(n)
			}
		}
	}
	if s.name != AccessFile && s.name != PageInFile {
		return
	}
	d := s.dictionary("tensor_name")
	d.kept = true
	w.names = w.names[:0]
	for i := range w.structure {
		w.names = append(w.names, d.index(w.structure[i].Name))
	}
}

// stream returns a table; it creates it on first use.
func (w *Writer) stream(name string) (*stream, error) {
	i := slices.Index(streamFiles, name)
	if w.streams[i] == nil {
		s, err := createStream(w.dir, name, w.segments.Last, w.fingerprint)
		if err != nil {
			return nil, err
		}
		w.fill(s)
		w.streams[i] = s
	}
	return w.streams[i], nil
}

// own lists the files of a capture directory other than the segments of tables.
var own = []string{StructureFile, StructureFile + ".tmp", MetaFile, MetaFile + ".tmp"}

// processDir matches the name of one process's capture in a session's directory.
var processDir = regexp.MustCompile(`^[0-9]+(-[0-9]+)?$`)

// clearCapture deletes an earlier capture in dir, so that none of its tables is mistaken for one of this run.
func clearCapture(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make capture directory: %w", err)
	}
	files, err := captureFiles(dir, true)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			return fmt.Errorf("remove the earlier capture: %w", err)
		}
	}
	return nil
}

// captureFiles lists what an earlier run left in dir, the contents of a directory before the directory. Anything that is not of a capture
// is an error.
func captureFiles(dir string, processes bool) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read capture directory: %w", err)
	}
	var files []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		_, _, segment := segmentOf(e.Name())
		switch {
		case segment, slices.Contains(own, e.Name()):
		case processes && e.IsDir() && processDir.MatchString(e.Name()):
			inside, err := captureFiles(path, false)
			if err != nil {
				return nil, err
			}
			files = append(files, inside...)
		default:
			return nil, fmt.Errorf("%s holds %s, which is %w", dir, e.Name(), ErrOccupied)
		}
		files = append(files, path)
	}
	return files, nil
}

// Access appends a row.
func (w *Writer) Access(a *tables.Access) error {
	s := w.access
	w.rows++
	w.segmentRows[len(w.segmentRows)-1]++
	s.int64(a.Timestamp)
	s.int32(a.Step)
	s.int32(a.Token)
	s.short(uint8(a.Phase))
	s.int32(a.Thread)
	s.text(a.Op)
	s.int32(w.names[a.Tensor])
	s.uint64(a.DataPtr)
	s.int64(a.Offset)
	s.int64(a.Bytes)
	s.int32(a.Layer)
	s.observed(a.Duration)
	s.list(a.Experts)
	s.int32(a.Context)
	s.observed(a.Stall)
	s.int32(w.structure[a.Tensor].Model)
	return s.endRow()
}

// Route appends a row.
func (w *Writer) Route(r *tables.Route) error {
	s, err := w.stream(RouteFile)
	if err != nil {
		return err
	}
	for _, v := range [...]int32{r.Step, r.Token, r.Layer, r.Slot, r.Expert, r.Position} {
		s.int32(v)
	}
	return s.endRow()
}

// Step appends a row.
func (w *Writer) Step(r *tables.StepRow) error {
	s, err := w.stream(StepFile)
	if err != nil {
		return err
	}
	s.int32(r.Step)
	s.int32(r.PID)
	s.int32(r.Thread)
	s.int32(r.Context)
	s.short(uint8(r.Phase))
	s.int32(r.Tokens)
	s.int32(r.Token)
	s.list(r.TokenIDs)
	s.list(r.Sequences)
	s.int64(r.Begin)
	s.observed(r.End)
	s.bool(r.Derived)
	return s.endRow()
}

// PageIn appends a row. The table is created with the first row, or by PageIns.
func (w *Writer) PageIn(r *tables.PageInRow) error {
	s, err := w.stream(PageInFile)
	if err != nil {
		return err
	}
	s.int64(r.Timestamp)
	s.int32(r.Step)
	s.int64(r.Offset)
	s.int64(r.Bytes)
	if r.Tensor < 0 {
		s.null()
	} else {
		s.int32(w.names[r.Tensor])
	}
	s.int32(r.Expert)
	s.int32(r.PID)
	s.int32(r.Thread)
	s.short(uint8(min(r.Cause, event.CauseOther)))
	s.int32(r.Rereads)
	s.textOrNull(r.Op)
	s.text(r.File)
	s.int32(r.Model)
	return s.endRow()
}

// PageIns creates the pagein table, which shows that page-ins are observed even if there are none.
func (w *Writer) PageIns() error {
	_, err := w.stream(PageInFile)
	return err
}

// Buffer appends a row. The table is created with the first row.
func (w *Writer) Buffer(r *tables.BufferRow) error {
	s, err := w.stream(BufferFile)
	if err != nil {
		return err
	}
	s.int64(r.Timestamp)
	s.int32(r.Step)
	s.text(r.Op)
	s.int64(r.Seq)
	s.text(r.Buffer)
	s.textOrNull(r.Root)
	s.short(uint8(r.Kind))
	s.bool(r.Write)
	s.uint64(r.DataPtr)
	s.int64(r.Bytes)
	return s.endRow()
}

// Flush writes buffered rows, and meta.
func (w *Writer) Flush(meta *tables.Meta) error {
	for _, s := range w.streams {
		if s != nil {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	meta.Schema = SchemaVersion
	meta.Rows = w.rows
	meta.Segments = w.segments
	return writeMeta(w.dir, meta)
}

// SegmentBytes is the size of the current segment, all tables together.
func (w *Writer) SegmentBytes() int64 {
	var n int64
	for _, s := range w.streams {
		if s != nil {
			n += s.size
		}
	}
	return n
}

// Rotate ends the current segments of the tables and begins new ones. It keeps the newest keep segments, all if keep is 0. meta lists
// deleted segments before they are deleted.
func (w *Writer) Rotate(meta *tables.Meta, keep int) error {
	if err := w.Flush(meta); err != nil {
		return err
	}
	w.segments.Last++
	w.segmentRows = append(w.segmentRows, 0)
	for _, s := range w.streams {
		if s == nil {
			continue
		}
		if err := s.end(); err != nil {
			return err
		}
		if err := s.begin(w.segments.Last); err != nil {
			return err
		}
	}
	first := w.segments.First
	for keep > 0 && len(w.segmentRows) > keep {
		w.segments.First++
		w.segments.Deleted++
		w.segments.DeletedRows += w.segmentRows[0]
		w.segmentRows = w.segmentRows[1:]
	}
	if keep <= 0 {
		w.segmentRows = w.segmentRows[len(w.segmentRows)-1:] // nothing is ever deleted
	}
	if err := w.Flush(meta); err != nil {
		return err
	}
	for ; first < w.segments.First; first++ {
		for _, name := range streamFiles {
			err := os.Remove(filepath.Join(w.dir, segmentFile(name, first)))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("delete the oldest segment: %w", err)
			}
		}
	}
	return nil
}

// Close flushes, ends the streams and records in meta whether the capture is complete.
func (w *Writer) Close(meta *tables.Meta, complete bool) error {
	meta.Complete = complete
	err := w.Flush(meta)
	for _, s := range w.streams {
		if s == nil {
			continue
		}
		if e := s.end(); err == nil {
			err = e
		}
		s.release()
	}
	return err
}

// abandon closes what Create opened.
func (w *Writer) abandon() {
	for _, s := range w.streams {
		if s != nil {
			_ = s.end() // the error that led here is the one to report
			s.release()
		}
	}
}

// writeStructure replaces the table at path.
func writeStructure(path, fingerprint string, rows []tables.StructureRow) error {
	schema := structureSchema(fingerprint)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for _, r := range rows {
		b.Field(0).(*array.StringBuilder).Append(r.Name)
		b.Field(1).(*array.Int64Builder).Append(r.Offset)
		b.Field(2).(*array.Int64Builder).Append(r.Size)
		b.Field(3).(*array.StringBuilder).Append(r.Type)
		b.Field(4).(*array.Int32Builder).Append(r.Layer)
		b.Field(5).(*array.StringBuilder).Append(r.Component)
		b.Field(6).(*array.StringBuilder).Append(r.File)
		shape := b.Field(7).(*array.ListBuilder)
		shape.Append(true)
		shape.ValueBuilder().(*array.Int64Builder).AppendValues(r.Shape, nil)
		b.Field(8).(*array.Int32Builder).Append(r.Experts)
		b.Field(9).(*array.Int64Builder).Append(r.ExpertStride)
		b.Field(10).(*array.Int32Builder).Append(r.Model)
	}
	rec := b.NewRecord()
	defer rec.Release()

	f, err := os.Create(path + ".tmp")
	if err != nil {
		return fmt.Errorf("create table: %w", err)
	}
	w := ipc.NewWriter(f, ipc.WithSchema(schema), ipc.WithZstd())
	if err := errors.Join(w.Write(rec), w.Close(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", StructureFile, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("replace %s: %w", StructureFile, err)
	}
	return nil
}
