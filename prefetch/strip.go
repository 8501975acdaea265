package prefetch

// This file draws the model's files as one strip: what tokens read of each part, what is kept of it, and where the
// target is.

import (
	"cmp"
	"math"
	"slices"

	"tensorcast/prefetch/pages"
)

// stripCells is how many cells a strip has at most.
const stripCells = 256

// Strip is the files of a model, laid end to end and cut into cells of equal size. Of each cell it says which share of
// its bytes is meant, from 0 to 255. In JSON these bytes are base64.
type Strip struct {
	Bytes int64 `json:"bytes"`      // of all files
	Cell  int64 `json:"cell_bytes"` // of a cell; the last one may be smaller
	// Used is what tokens read, of a mixture all experts. The rest is metadata, tables of which rows are looked up, and
	// what other control groups pay for.
	Used []byte `json:"used"`
	// Kept is what is kept in memory, as far as is known.
	Kept []byte `json:"kept"`
	// Ahead is what was read ahead, is on its way, or waits to be paged out behind the target.
	Ahead []byte `json:"ahead"`
	// At is where the target reads, as an offset in the strip in bytes. It is -1 while it computes nothing.
	At int64 `json:"at"`
}

// strip draws the files that the followed cycle reads; nil if their sizes are not known.
func (f *followed) strip() *Strip {
	d := f.newDrawing()
	if d == nil {
		return nil
	}
	var used, kept, ahead sums
	for b, r := range f.schedule.Blocks {
		d.add(&used, r)
		if f.held[b] {
			d.add(&kept, r)
		}
	}
	for i := range f.staged {
		if b := f.staged[i].block; !f.held[b] {
			d.add(&ahead, f.schedule.Blocks[b])
		}
	}
	if f.mixture != nil {
		f.mixture.EachSlice(func(r pages.Range, resident bool) {
			d.add(&used, r)
			if resident {
				d.add(&kept, r)
			}
		})
		f.mixture.EachStaged(func(r pages.Range) { d.add(&ahead, r) })
	}
	s := &Strip{
		Bytes: d.bytes, Cell: d.cell, Used: d.shares(&used), Kept: d.shares(&kept), Ahead: d.shares(&ahead), At: -1,
	}
	if f.Decode != 0 {
		r := f.schedule.Reads[f.ReadOf(f.Now)]
		s.At = d.starts[r.File] + r.Offset
	}
	return s
}

// sums are bytes by cell.
type sums [stripCells]int64

// drawing knows where in the strip a file lies.
type drawing struct {
	starts map[int]int64 // by file: where it begins in the strip
	bytes  int64         // of all files
	cell   int64         // bytes
}

// newDrawing lays the files of the cycle end to end, in the order of their numbers.
func (f *followed) newDrawing() *drawing {
	d := &drawing{starts: map[int]int64{}}
	for i := range f.cycle.Reads {
		d.starts[f.cycle.Reads[i].File] = 0
	}
	var numbers []int
	for file := range d.starts {
		numbers = append(numbers, file)
	}
	slices.SortFunc(numbers, cmp.Compare)
	for _, file := range numbers {
		if file >= len(f.files) || f.files[file].size > math.MaxInt64/2-d.bytes {
			return nil
		}
		d.starts[file] = d.bytes
		d.bytes += f.files[file].size
	}
	if d.bytes <= 0 {
		return nil
	}
	d.cell = (d.bytes + stripCells - 1) / stripCells
	return d
}

// add adds a range of a file.
func (d *drawing) add(to *sums, r pages.Range) {
	at := d.starts[r.File] + r.Offset
	for end := min(at+r.Length, d.bytes); at < end; {
		cell := at / d.cell
		stop := min((cell+1)*d.cell, end)
		to[cell] += stop - at
		at = stop
	}
}

// shares are the shares of cells that the sums have. Where there is a little it is never 0, and where something is
// missing it is never 255.
func (d *drawing) shares(of *sums) []byte {
	all := make([]byte, (d.bytes+d.cell-1)/d.cell)
	for i := range all {
		size := min(d.cell, d.bytes-int64(i)*d.cell)
		share := float64(of[i]) / float64(size)
		switch {
		case of[i] >= size:
			all[i] = math.MaxUint8
		case of[i] > 0:
			all[i] = byte(min(max(math.Round(math.MaxUint8*share), 1), math.MaxUint8-1))
		}
	}
	return all
}
