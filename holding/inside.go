package holding

// This file finds out whether a process that maps no model maps one inside of another file.

import (
	"fmt"
	"path/filepath"

	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/visible"
)

// findInside says in which mapped file a GGUF file lies, and what to do; "" if none was found. One is
// found where a mapping begins with it, and where gguf.LookInside looks.
func (e *Examiner) findInside(sp *space) string {
	starts := map[proc.FileID][]int64{} // offsets at which areas begin
	for i := range sp.areas {
		if a := &sp.areas[i]; a.offset > 0 && a.file.Ino != 0 && len(starts[a.file]) < maxNames {
			starts[a.file] = append(starts[a.file], int64(min(a.offset, maxBytes)))
		}
	}
	for _, files := range []map[proc.FileID]*mapped{sp.files, sp.programs} {
		for _, c := range largest(files) {
			if e.noInside[c.first.File] {
				continue
			}
			if found := lookInside(c.first.Locate(e.pid), starts[c.first.File]); found != "" {
				return fmt.Sprintf("in %s %s", visible.Line(filepath.Base(c.first.Path)), found)
			}
			e.noInside[c.first.File] = true
		}
	}
	return ""
}

// lookInside looks into one file.
func lookInside(at proc.Place, starts []int64) string {
	f, err := at.Open()
	if err != nil {
		return "" // one of the many files that a process maps and that cannot be opened from here
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	return gguf.LookInside(f, info.Size(), starts...)
}
