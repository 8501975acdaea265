package trace

// This file writes a capture directory. Invariant: at any moment each table on disk consists of
// complete batches, except possibly for the last one, and capture.json is a complete document,
// which says that the capture is complete only if nothing is missing.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"tensorcast/event"
	"tensorcast/internal/outfile"
	"tensorcast/trace/tables"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// A capture holds the ids of the tokens, which are the prompt: it is its owner's only.
const (
	fileMode = 0o600
	dirMode  = 0o700
)

// Writer writes one capture. After an error it writes nothing more and returns that error. It is
// not safe for concurrent use.
type Writer struct {
	dir         *outfile.Dir
	owned       bool   // dir is closed with the Writer
	err         error  // what went wrong first
	fingerprint string // of all models together
	structure   []tables.StructureRow
	names       []int32   // by structure row: index in the dictionary of tensor names, which is the same in all tables
	streams     []*stream // in the order of streamFiles; nil until the table is used
	access      *stream   // the stream of the access table
	hidden      int       // values of a row of the hidden table; 0 until there is one
	rows        int64     // of the access table
	segments    tables.Segments
	segmentRows []int64 // rows of the access table in each segment that exists
}

// Create creates dir (and its parents) and writes the structure table. It replaces an older capture
// in dir; if dir holds anything else, it returns ErrOccupied, and if another Writer has it open, in
// whatever process, ErrBusy. A directory that others can write to is refused (outfile.ErrUnsafe).
// Access.Tensor is an index into structure.
func Create(dir string, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
	d, err := openDir(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	w, err := replace(d, meta, structure)
	if err != nil {
		d.Forget()
		return nil, err
	}
	w.owned = true
	return w, nil
}

// replace clears a directory and creates a capture in it.
func replace(dir *outfile.Dir, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
	if err := clearCapture(dir); err != nil {
		return nil, err
	}
	return create(dir, meta, structure)
}

// create creates a capture in a directory that holds none.
func create(dir *outfile.Dir, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
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

// Extend appends rows, the tensors of a model that was added to meta, to the structure table. The
// table is replaced atomically.
func (w *Writer) Extend(meta *tables.Meta, rows []tables.StructureRow) error {
	var prints []string
	for _, m := range meta.Models {
		prints = append(prints, m.Fingerprint)
	}
	w.fingerprint = strings.Join(prints, ",")
	w.structure = append(w.structure, rows...)
	if err := w.failed(writeStructure(w.dir, w.fingerprint, w.structure)); err != nil {
		return err
	}
	for _, s := range w.streams {
		if s != nil {
			w.fill(s)
		}
	}
	return nil
}

// fill puts the strings that are known from the start into a table's dictionaries, so that the
// stream need not replace these later.
func (w *Writer) fill(s *stream) {
	var names []string
	switch s.name {
	case AccessFile, StepFile:
		names = tables.PhaseNames()
	case PageInFile:
		names = event.CauseNames()
	case BufferFile:
		names = tables.BufferKindNames()
	case HiddenFile:
		names = event.PointNames()
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
	if w.err != nil {
		return nil, w.err
	}
	i := slices.Index(streamFiles, name)
	if w.streams[i] == nil {
		fields := columnsOf[name]
		if name == HiddenFile {
			fields = hiddenColumns(w.hidden)
		}
		s, err := createStream(w.dir, name, fields, w.segments.Last, w.fingerprint)
		if err != nil {
			return nil, w.failed(err)
		}
		w.fill(s)
		w.streams[i] = s
	}
	return w.streams[i], nil
}

// failed notes the first error and returns it.
func (w *Writer) failed(err error) error {
	w.err = cmp.Or(w.err, err)
	return w.err
}

// own lists the files of a capture directory other than the segments of tables; earlier versions
// left the temporary ones when they were killed.
var own = []string{MetaFile, MetaFile + ".tmp", StructureFile, StructureFile + ".tmp"}

func isOwn(name string) bool {
	_, _, segment := segmentOf(name)
	return segment || slices.Contains(own, name) || slices.Contains(own, outfile.Temporary(name)) || isExport(name) ||
		isExport(outfile.Temporary(name))
}

// processDir matches the name of one process's capture in a session's directory.
var processDir = regexp.MustCompile(`^[0-9]+(-[0-9]+)?$`)

// ErrBusy says that another tracer writes to the directory.
var ErrBusy = errors.New("is being written by another tracer")

// openDir opens the directory of a capture, makes it if need be, and locks it. It fails with
// ErrOccupied if it holds anything else than a capture, and with ErrBusy.
func openDir(path string, log *slog.Logger) (*outfile.Dir, error) {
	const attempts = 10
	for i := 0; ; i++ {
		d, err := outfile.OpenDir(path, dirMode)
		if err != nil {
			return nil, fmt.Errorf("capture directory: %w", err)
		}
		err = lock(d)
		switch {
		case errors.Is(err, fs.ErrNotExist) && i < attempts: // a tracer that captured nothing has removed it
			d.Close()
			continue
		case errors.Is(err, errors.ErrUnsupported):
			log.Warn("another tracer that writes to the same directory would not be noticed", "error", err)
			err = nil
		}
		if err == nil {
			err = onlyCapture(d, true)
		}
		if err != nil {
			d.Forget()
			return nil, err
		}
		return d, nil
	}
}

// onlyCapture returns ErrOccupied if dir holds anything that is not of a capture.
func onlyCapture(dir *outfile.Dir, processes bool) error {
	entries, err := dir.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case isOwn(e.Name):
		case processes && e.Dir && processDir.MatchString(e.Name):
			if err := within(dir, e.Name, func(d *outfile.Dir) error { return onlyCapture(d, false) }); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s holds %s, which is %w", dir.Path(""), e.Name, ErrOccupied)
		}
	}
	return nil
}

// clearCapture deletes an earlier capture in dir, so that none of its tables is mistaken for one of
// this run: first its description, so that it is no capture any more.
func clearCapture(dir *outfile.Dir) error {
	if err := onlyCapture(dir, true); err != nil {
		return err
	}
	return removeAll(dir)
}

func removeAll(dir *outfile.Dir) error {
	entries, err := dir.Entries()
	if err != nil {
		return err
	}
	for _, description := range []bool{true, false} {
		for _, e := range entries {
			if (e.Name == MetaFile) != description {
				continue
			}
			if e.Dir {
				if err := within(dir, e.Name, removeAll); err != nil {
					return err
				}
			}
			if err := dir.Remove(e.Name); err != nil {
				return fmt.Errorf("replace the earlier capture: %w", err)
			}
		}
	}
	return nil
}

// within calls do with a directory in dir, locked.
func within(dir *outfile.Dir, name string, do func(*outfile.Dir) error) error {
	sub, err := dir.Sub(name, dirMode)
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := lock(sub); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return do(sub)
}

func lock(dir *outfile.Dir) error {
	err := dir.Lock()
	if errors.Is(err, outfile.ErrLocked) {
		return fmt.Errorf("%s %w", dir.Path(""), ErrBusy)
	}
	return err
}

// Access appends a row.
func (w *Writer) Access(a *tables.Access) error {
	if w.err != nil {
		return w.err
	}
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
	return w.failed(s.endRow())
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
	return w.failed(s.endRow())
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
	return w.failed(s.endRow())
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
	return w.failed(s.endRow())
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
	return w.failed(s.endRow())
}

// Hidden appends a row. The table is created with the first one; the others must have as many
// values, at most tables.MaxHidden.
func (w *Writer) Hidden(r *tables.HiddenRow) error {
	if w.hidden == 0 {
		w.hidden = len(r.Values)
	}
	if n := len(r.Values); n == 0 || n > tables.MaxHidden || n != w.hidden {
		return w.failed(fmt.Errorf("write table %s: a row has %d values, the first had %d", HiddenFile, n, w.hidden))
	}
	s, err := w.stream(HiddenFile)
	if err != nil {
		return err
	}
	s.int32(r.Step)
	s.int32(r.Token)
	s.int32(r.Layer)
	s.short(uint8(min(r.Point, event.PointAttention)))
	s.int32(r.Position)
	s.halves(r.Values)
	return w.failed(s.endRow())
}

// Flush writes buffered rows, and meta.
func (w *Writer) Flush(meta *tables.Meta) error {
	if err := w.flushRows(); err != nil {
		return err
	}
	return w.failed(w.describe(meta))
}

func (w *Writer) flushRows() error {
	for _, s := range w.streams {
		if s != nil && w.err == nil {
			_ = w.failed(s.flush())
		}
	}
	return w.err
}

func (w *Writer) describe(meta *tables.Meta) error {
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

// Rotate ends the current segments of the tables and begins new ones. It keeps the newest keep
// segments, all if keep is 0. meta lists deleted segments before they are deleted.
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
		if err := w.failed(s.end()); err != nil {
			return err
		}
		if err := w.failed(s.begin(w.segments.Last)); err != nil {
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
			err := w.dir.Remove(segmentFile(name, first))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return w.failed(fmt.Errorf("delete the oldest segment: %w", err))
			}
		}
	}
	return nil
}

// Close flushes, ends the streams and then records in meta whether the capture is complete: it is
// not if anything went wrong.
func (w *Writer) Close(meta *tables.Meta, complete bool) error {
	_ = w.flushRows() // all, before the first is ended
	for _, s := range w.streams {
		if s != nil {
			_ = w.failed(s.end())
			s.release()
		}
	}
	meta.Complete = complete && w.err == nil
	if err := w.describe(meta); err != nil {
		_ = w.failed(err)
		meta.Complete = false // what is on disk is an earlier description
	}
	if w.owned {
		w.dir.Close()
	}
	return w.err
}

// abandon closes what create opened.
func (w *Writer) abandon() {
	for _, s := range w.streams {
		if s != nil {
			_ = s.end() // the error that led here is the one to report
			s.release()
		}
	}
}

// writeStructure replaces the table.
func writeStructure(dir *outfile.Dir, fingerprint string, rows []tables.StructureRow) error {
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

	return dir.Write(StructureFile, fileMode, func(w io.Writer) error {
		dst := newLatched(w)
		table := ipc.NewWriter(dst, ipc.WithSchema(schema), ipc.WithZstd())
		err := errors.Join(table.Write(rec), table.Close())
		return cmp.Or(dst.end(), err)
	})
}
