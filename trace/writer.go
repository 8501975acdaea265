package trace

// This file writes a capture directory. Two things hold at any moment. Each table on disk consists of
// complete batches, except possibly for the last one. And capture.json is a complete document, which
// says that the capture is complete only if nothing is missing.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"tensorcast/event"
	"tensorcast/internal/outfile"
	"tensorcast/trace/tables"
)

// Only its owner may read a capture: it holds the ids of the tokens, and they are the prompt.
const (
	fileMode = 0o600
	dirMode  = 0o700
)

// Writer writes one capture. After an error it writes nothing more and returns that error. It is
// not safe for concurrent use.
type Writer struct {
	dir         *outfile.Dir
	ownsDir     bool   // dir is closed with the Writer
	err         error  // what went wrong first
	fingerprint string // of all models together
	structure   []tables.StructureRow
	// names has, for each structure row, the index in the dictionary of tensor names. That dictionary is
	// the same in all tables.
	names        []int32
	streams      []*stream // in the order of streamFiles; nil until the table is used
	access       *stream   // the stream of the access table
	hiddenValues int       // values of a row of the hidden table; 0 until there is one
	rows         int64     // of the access table
	segments     tables.Segments
	segmentRows  []int64 // rows of the access table in each segment that exists
}

// Create creates dir (and its parents) and writes the structure table. It replaces an older capture in
// dir. It returns ErrOccupied if dir holds anything else, ErrBusy if another Writer has it open, in
// whatever process, and outfile.ErrUnsafe if others can write to dir. Access.Tensor is an index into
// structure.
func Create(dir string, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
	d, err := openDir(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	w, err := replaceCapture(d, meta, structure)
	if err != nil {
		d.CloseAndRemoveEmpty()
		return nil, err
	}
	w.ownsDir = true
	return w, nil
}

// replaceCapture clears a directory and creates a capture in it.
func replaceCapture(dir *outfile.Dir, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
	if err := clearCapture(dir); err != nil {
		return nil, err
	}
	return createCapture(dir, meta, structure)
}

// createCapture creates a capture in a directory that holds none.
func createCapture(dir *outfile.Dir, meta *tables.Meta, structure []tables.StructureRow) (*Writer, error) {
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
		if _, err := w.streamOf(name); err != nil {
			w.closeStreams()
			return nil, err
		}
	}
	w.access = w.streams[slices.Index(streamFiles, AccessFile)]
	return w, nil
}

// Extend appends rows to the structure table: the tensors of a model that was added to meta. The table
// is replaced atomically.
func (w *Writer) Extend(meta *tables.Meta, rows []tables.StructureRow) error {
	w.fingerprint = joinFingerprints(meta)
	w.structure = append(w.structure, rows...)
	if err := w.noteError(writeStructure(w.dir, w.fingerprint, w.structure)); err != nil {
		return err
	}
	for _, s := range w.streams {
		if s != nil {
			w.fillDictionaries(s)
		}
	}
	return nil
}

// joinFingerprints returns the fingerprints of all models, separated by commas.
func joinFingerprints(meta *tables.Meta) string {
	var prints []string
	for _, m := range meta.Models {
		prints = append(prints, m.Fingerprint)
	}
	return strings.Join(prints, ",")
}

// fillDictionaries puts the strings that are known from the start into a table's dictionaries, so that
// the stream need not replace these later.
func (w *Writer) fillDictionaries(s *stream) {
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
				d.indexOf(n)
			}
		}
	}
	if s.name != AccessFile && s.name != PageInFile {
		return
	}
	d := s.dictionaryOf("tensor_name")
	d.isKept = true
	w.names = w.names[:0]
	for i := range w.structure {
		w.names = append(w.names, d.indexOf(w.structure[i].Name))
	}
}

// streamOf returns a table. It creates the table on first use.
func (w *Writer) streamOf(name string) (*stream, error) {
	if w.err != nil {
		return nil, w.err
	}
	i := slices.Index(streamFiles, name)
	if w.streams[i] == nil {
		fields := columnsOf[name]
		if name == HiddenFile {
			fields = hiddenColumns(w.hiddenValues)
		}
		s, err := createStream(w.dir, name, fields, w.segments.Last, w.fingerprint)
		if err != nil {
			return nil, w.noteError(err)
		}
		w.fillDictionaries(s)
		w.streams[i] = s
	}
	return w.streams[i], nil
}

// noteError notes the first error and returns it.
func (w *Writer) noteError(err error) error {
	w.err = cmp.Or(w.err, err)
	return w.err
}

// Flush writes buffered rows, and meta.
func (w *Writer) Flush(meta *tables.Meta) error {
	if err := w.flushRows(); err != nil {
		return err
	}
	return w.noteError(w.describe(meta))
}

func (w *Writer) flushRows() error {
	for _, s := range w.streams {
		if s != nil && w.err == nil {
			_ = w.noteError(s.flush())
		}
	}
	return w.err
}

// describe replaces capture.json.
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
	if err := w.beginSegments(); err != nil {
		return err
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
	return w.deleteSegments(first, w.segments.First)
}

// beginSegments ends the current segments of all tables and begins the next ones.
func (w *Writer) beginSegments() error {
	w.segments.Last++
	w.segmentRows = append(w.segmentRows, 0)
	for _, s := range w.streams {
		if s == nil {
			continue
		}
		if err := w.noteError(s.endSegment()); err != nil {
			return err
		}
		if err := w.noteError(s.beginSegment(w.segments.Last)); err != nil {
			return err
		}
	}
	return nil
}

// deleteSegments deletes the segments [from, to) of all tables.
func (w *Writer) deleteSegments(from, to int) error {
	for segment := from; segment < to; segment++ {
		for _, name := range streamFiles {
			err := w.dir.Remove(segmentFile(name, segment))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return w.noteError(fmt.Errorf("delete the oldest segment: %w", err))
			}
		}
	}
	return nil
}

// Close flushes, ends the streams and then records in meta whether the capture is complete. It is not
// if anything went wrong.
func (w *Writer) Close(meta *tables.Meta, complete bool) error {
	_ = w.flushRows() // of all tables, before the first is ended
	for _, s := range w.streams {
		if s != nil {
			_ = w.noteError(s.endSegment())
			s.release()
		}
	}
	meta.Complete = complete && w.err == nil
	if err := w.describe(meta); err != nil {
		_ = w.noteError(err)
		meta.Complete = false // what is on disk is an earlier description
	}
	if w.ownsDir {
		w.dir.Close()
	}
	return w.err
}

// closeStreams closes the streams that createCapture opened.
func (w *Writer) closeStreams() {
	for _, s := range w.streams {
		if s != nil {
			_ = s.endSegment() // the error that led here is the one to report
			s.release()
		}
	}
}

// writeStructure replaces the structure table.
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
