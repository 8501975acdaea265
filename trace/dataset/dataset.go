// Package dataset keeps captures of many machines as one data set: a directory of Parquet files that DuckDB, Spark,
// pandas and polars read with one query.
//
// A capture is a run, and a run is a partition as Apache Hive names them: DIR/model=MODEL/run=RUN. In it is a file for
// each table that the capture has, such as steps.parquet, and run.parquet, whose one row describes the run. A reader
// takes the columns model and run from the names of the directories. So the tables have no column with one of these
// names: the number of a model in its capture, which is "model" in the capture, is "model_index" here.
//
// The table of hidden states is left out unless it is asked for, because its rows have another width with each model.
//
// A data set tells what was said as its captures do (tokens, and which rows of the embeddings were read). So its
// directories and files are readable by their owner only.
package dataset

// This file appends a run.

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"tensorcast/internal/outfile"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// ErrExists says that the data set has a run of that name already.
var ErrExists = errors.New("the data set has this run already")

// Modes of what is written.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// Options say how a run is appended.
type Options struct {
	// Model and Run are the names of the partition. Characters that are not safe in a path become "_", see [SafeName].
	// If Model is empty it is the name of the capture's largest model. If Run is empty it is when the capture began,
	// and a hash of its description: the same capture has the same name each time.
	Model, Run string
	// Replace puts the run in the place of one that has its name.
	Replace bool
	// Hidden adds the table of hidden states.
	Hidden bool
	// ForOthers leaves out what tells one machine from another of its kind: which disk it has.
	ForOthers bool
}

// tables are the names of the tables of a capture that a run has, without the one that describes it.
func (o Options) tables(c *trace.Capture) (names []string) {
	for _, name := range trace.TableNames() {
		if c.HasTable(name) && (o.Hidden || name+".arrows" != trace.HiddenFile) {
			names = append(names, name)
		}
	}
	return names
}

// Partition is a run in a data set.
type Partition struct {
	Model string   `json:"model"`
	Run   string   `json:"run"`
	Files []string `json:"files"` // paths
}

// Append appends a capture to the data set in a directory, which is made if it is missing. The run appears with all
// its files or not at all. Several processes may append at the same time. The error wraps [ErrExists] if there is a
// run of that name, [outfile.ErrUnsafe] if others can write to the directory, ctx's error if ctx is done first, or it
// is one of the capture's readers.
func Append(ctx context.Context, path string, c *trace.Capture, o Options) (p Partition, err error) {
	if p.Model, p.Run, err = o.names(c.Meta); err != nil {
		return Partition{}, err
	}
	describe, err := runColumns(ctx, c, o)
	if err != nil {
		return Partition{}, err
	}
	top, err := outfile.OpenDir(path, dirMode)
	if err != nil {
		return Partition{}, fmt.Errorf("open the data set: %w", err)
	}
	defer closeDir(top, &err)
	model, err := top.OpenSub("model="+p.Model, dirMode)
	if err != nil {
		return Partition{}, fmt.Errorf("open the data set: %w", err)
	}
	defer closeDir(model, &err)
	if err := model.SweepStaged(); err != nil {
		return Partition{}, fmt.Errorf("remove what a killed process has left: %w", err)
	}
	name := "run=" + p.Run
	run, err := model.Stage(name, dirMode)
	if err != nil {
		return Partition{}, fmt.Errorf("append a run: %w", err)
	}
	defer run.Discard()
	write := func(table string, write func(io.Writer) error) error {
		file := table + ".parquet"
		p.Files = append(p.Files, run.Path(file))
		return run.Write(file, fileMode, write)
	}
	for _, table := range o.tables(c) {
		err := write(table, func(w io.Writer) error {
			return trace.WriteParquetBatches(w, withoutModel(c.TableColumns(ctx, table)))
		})
		if err != nil {
			return Partition{}, fmt.Errorf("write the table %s: %w", table, err)
		}
	}
	err = write(runTable, func(w io.Writer) error { return trace.WriteParquet(w, describe) })
	if err != nil {
		return Partition{}, fmt.Errorf("write the table %s: %w", runTable, err)
	}
	if o.Replace {
		err = run.Replace()
	} else {
		err = run.Commit()
	}
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: %s", ErrExists, model.Path(name))
	}
	if err != nil {
		return Partition{}, err
	}
	return p, nil
}

// closeDir closes a directory. After an error it is removed, if it was made and is empty.
func closeDir(d *outfile.Dir, err *error) {
	if *err != nil {
		d.CloseAndRemoveEmpty()
	} else {
		d.Close()
	}
}

// names are the names of the partition.
func (o Options) names(meta *tables.Meta) (model, run string, err error) {
	model, run = o.Model, o.Run
	if model == "" {
		model = modelName(meta)
	}
	if run == "" {
		description, err := json.Marshal(meta)
		if err != nil {
			return "", "", fmt.Errorf("name the run: %w", err)
		}
		hash := sha256.Sum256(description)
		run = fmt.Sprintf("%s-%x", meta.Started.UTC().Format("20060102T150405Z"), hash[:4])
	}
	safeModel, safeRun := SafeName(model), SafeName(run)
	if safeModel == "" {
		return "", "", fmt.Errorf("%q has no letter or digit that could name a model", model)
	}
	if safeRun == "" {
		return "", "", fmt.Errorf("%q has no letter or digit that could name a run", run)
	}
	return safeModel, safeRun, nil
}

// part matches what follows the name of a model in that of one of its files.
var part = regexp.MustCompile(`(-\d+-of-\d+)?\.gguf$`)

// modelName is the name of a capture's largest model: its file, without the suffix and the number of the part.
func modelName(meta *tables.Meta) string {
	m := largest(meta)
	if m == nil {
		return "unknown"
	}
	return part.ReplaceAllString(filepath.Base(m.Path), "")
}

// largest is the largest model of a capture. It is nil if the capture has none.
func largest(meta *tables.Meta) (m *tables.ModelInfo) {
	for i := range meta.Models {
		if m == nil || meta.Models[i].Bytes > m.Bytes {
			m = &meta.Models[i]
		}
	}
	return m
}

// maxName bounds a name, in bytes. File systems take names of 255 bytes. A temporary name is longer, see
// outfile.Dir.Stage.
const maxName = 180

// unsafeCharacters are those that a shell, a glob pattern, a URL or a reader of partitions may misread.
var unsafeCharacters = regexp.MustCompile(`[^A-Za-z0-9._+-]+`)

// SafeName makes a text safe as the value of a partition: characters other than ASCII letters, digits and ._+- become
// "_", what would hide a directory or mean "no value" to a reader is cut from its beginning, and the rest is cut to 180
// bytes. It is "" if nothing is left. Different texts may become the same name.
func SafeName(text string) string {
	name := strings.TrimLeft(unsafeCharacters.ReplaceAllString(text, "_"), "._+-")
	return name[:min(len(name), maxName)]
}
