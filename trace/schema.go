// Package trace stores captures. It joins a capturer's events with the models' structure and writes the
// tables of a capture as Arrow files, in a way that survives being killed. It reads them back, and
// exports tables as Parquet, Arrow or CSV. It does not know how events are captured. The rows themselves
// are defined in package trace/tables.
//
// A capture is a directory. Each table is an Arrow IPC stream: if it is cut short, its complete batches
// can still be read. capture.json holds descriptions and counters and is replaced atomically.
//
// A [Session] takes a capturer's events (package capture feeds it). For a single process, a [Recorder]
// suffices. Neither is safe for concurrent use. [Open] reads what they wrote:
//
//	c, err := trace.Open("capture")
//	...
//	for a, err := range c.Accesses() {
//		if err != nil {
//			return err
//		}
//		fmt.Println(a.Timestamp, c.Structure[a.Tensor].Name, a.Bytes)
//	}
package trace

// This file defines the files of a capture and the columns of its tables.

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// Names of the files of a capture directory. If a capture is rotated, a table continues in numbered
// segments: access.arrows, access.0001.arrows, ...
const (
	AccessFile    = "access.arrows"
	RouteFile     = "route.arrows"
	StepFile      = "steps.arrows"
	PageInFile    = "pagein.arrows"  // only if page-ins were observed
	BufferFile    = "buffers.arrows" // only if buffers were observed
	HiddenFile    = "hidden.arrows"  // only if routers' inputs were observed
	StructureFile = "structure.arrows"
	MetaFile      = "capture.json"
)

// streamFiles are the tables that may have several segments.
var streamFiles = []string{AccessFile, RouteFile, StepFile, PageInFile, BufferFile, HiddenFile}

// maxSegments bounds the numbers of segments: they have at most nine digits.
const maxSegments = 1e9

var segmentName = regexp.MustCompile(`^([a-z]+)\.([0-9]{4,9})\.arrows$`)

// segmentFile is the file name of a table's segment.
func segmentFile(table string, segment int) string {
	if segment == 0 {
		return table
	}
	return fmt.Sprintf("%s.%04d.arrows", strings.TrimSuffix(table, filepath.Ext(table)), segment)
}

// segmentOf is the inverse of segmentFile. ok is false if name is no segment of a table.
func segmentOf(name string) (table string, segment int, ok bool) {
	if slices.Contains(streamFiles, name) {
		return name, 0, true
	}
	m := segmentName.FindStringSubmatch(name)
	if m == nil || !slices.Contains(streamFiles, m[1]+".arrows") {
		return "", 0, false
	}
	segment, err := strconv.Atoi(m[2])
	return m[1] + ".arrows", segment, err == nil && segment > 0
}

// SchemaVersion is stored in the metadata of each table's schema and in capture.json. Readers
// reject other versions.
const SchemaVersion = 2

// Keys of a table's metadata: its schema version, and the fingerprints of the models that were
// known when it was begun, separated by commas.
const (
	metadataVersion = "tensorcast.schema"
	metadataModels  = "tensorcast.model"
)

func tableMetadata(fingerprint string) *arrow.Metadata {
	m := arrow.NewMetadata(
		[]string{metadataVersion, metadataModels, "tensorcast.clock"},
		[]string{strconv.Itoa(SchemaVersion), fingerprint, "ns since capture start, CLOCK_MONOTONIC"})
	return &m
}

var (
	nameDict  = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
	shortDict = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	int32List = arrow.ListOf(arrow.PrimitiveTypes.Int32)
)

// columnsOf lists the columns of each table in streamFiles. The entry of the hidden table is for rows of
// one value. How many values a row really has depends on the model: see hiddenColumns.
var columnsOf = map[string][]arrow.Field{
	AccessFile: {
		{Name: "timestamp", Type: arrow.PrimitiveTypes.Int64},
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "phase", Type: shortDict},
		{Name: "thread", Type: arrow.PrimitiveTypes.Int32},
		{Name: "op", Type: nameDict},
		{Name: "tensor_name", Type: nameDict},
		{Name: "data_ptr", Type: arrow.PrimitiveTypes.Uint64},
		{Name: "offset_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "bytes_accessed", Type: arrow.PrimitiveTypes.Int64},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "duration_ns", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "experts", Type: int32List, Nullable: true},
		{Name: "context", Type: arrow.PrimitiveTypes.Int32},
		{Name: "stall_ns", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "model", Type: arrow.PrimitiveTypes.Int32}, // a tensor's name is unique only within its model
	},
	RouteFile: {
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "slot", Type: arrow.PrimitiveTypes.Int32},
		{Name: "expert", Type: arrow.PrimitiveTypes.Int32},
		{Name: "position", Type: arrow.PrimitiveTypes.Int32},
	},
	StepFile: {
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "pid", Type: arrow.PrimitiveTypes.Int32},
		{Name: "thread", Type: arrow.PrimitiveTypes.Int32},
		{Name: "context", Type: arrow.PrimitiveTypes.Int32},
		{Name: "phase", Type: shortDict},
		{Name: "tokens", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token_ids", Type: int32List, Nullable: true},
		{Name: "sequences", Type: int32List, Nullable: true},
		{Name: "begin", Type: arrow.PrimitiveTypes.Int64},
		{Name: "end", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "derived", Type: arrow.FixedWidthTypes.Boolean},
	},
	PageInFile: {
		{Name: "timestamp", Type: arrow.PrimitiveTypes.Int64},
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "offset_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "tensor_name", Type: nameDict, Nullable: true},
		{Name: "expert", Type: arrow.PrimitiveTypes.Int32},
		{Name: "pid", Type: arrow.PrimitiveTypes.Int32},
		{Name: "thread", Type: arrow.PrimitiveTypes.Int32},
		{Name: "cause", Type: shortDict},
		{Name: "rereads", Type: arrow.PrimitiveTypes.Int32},
		{Name: "op", Type: nameDict, Nullable: true},
		{Name: "file", Type: nameDict},
		{Name: "model", Type: arrow.PrimitiveTypes.Int32},
	},
	BufferFile: {
		{Name: "timestamp", Type: arrow.PrimitiveTypes.Int64},
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "op", Type: nameDict},
		{Name: "seq", Type: arrow.PrimitiveTypes.Int64},
		{Name: "buffer", Type: nameDict},
		{Name: "root", Type: nameDict, Nullable: true},
		{Name: "kind", Type: shortDict},
		{Name: "write", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "data_ptr", Type: arrow.PrimitiveTypes.Uint64},
		{Name: "bytes", Type: arrow.PrimitiveTypes.Int64},
	},
	HiddenFile: hiddenColumns(1),
}

// hiddenColumns are the columns of the hidden table for rows of n values.
func hiddenColumns(n int) []arrow.Field {
	return []arrow.Field{
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "point", Type: shortDict},
		{Name: "position", Type: arrow.PrimitiveTypes.Int32},
		{Name: "values", Type: arrow.FixedSizeListOfNonNullable(int32(n), arrow.FixedWidthTypes.Float16)},
	}
}

func structureSchema(fingerprint string) *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{
		{Name: "tensor_name", Type: arrow.BinaryTypes.String},
		{Name: "offset_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "size_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "type", Type: arrow.BinaryTypes.String},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "component", Type: arrow.BinaryTypes.String},
		{Name: "file", Type: arrow.BinaryTypes.String},
		{Name: "shape", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)},
		{Name: "expert_count", Type: arrow.PrimitiveTypes.Int32},
		{Name: "expert_stride_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "model", Type: arrow.PrimitiveTypes.Int32},
	}, tableMetadata(fingerprint))
}
