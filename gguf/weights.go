package gguf

// This file gives access to a model's weights: as bytes and as floats.

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
)

// Weights gives access to the weights of a model through read-only mappings. Data is read only when
// it is used, so opening takes as long for a terabyte as for a megabyte. Any number of goroutines
// may use it.
type Weights struct {
	Model *Model

	parts []*mapping // in the order of Model.Files
	cache *floatCache

	mu     sync.Mutex
	idle   sync.Cond // signalled when users becomes 0
	users  int
	closed bool
}

// OpenWeights maps the files of a model that OpenModel returned. They must not have changed since
// then (ErrChanged). Up to cacheBytes of memory are used for the results of Float32.
func OpenWeights(m *Model, cacheBytes int64) (*Weights, error) {
	w := &Weights{Model: m, cache: newFloatCache(cacheBytes)}
	w.idle.L = &w.mu
	for _, f := range m.Files {
		part, err := mapFile(f)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.parts = append(w.parts, part)
	}
	return w, nil
}

// Close unmaps the files. It waits for calls in progress. Later calls return fs.ErrClosed. Slices
// that Bytes returned must not be used any more. Values that Float32 returned stay valid until they
// are released.
func (w *Weights) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	for w.users > 0 {
		w.idle.Wait()
	}
	var errs []error
	for _, part := range w.parts {
		errs = append(errs, part.close())
	}
	return errors.Join(errs...)
}

// beginUse keeps the files mapped until endUse. It fails after Close.
func (w *Weights) beginUse() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fs.ErrClosed
	}
	w.users++
	return nil
}

func (w *Weights) endUse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users--; w.users == 0 {
		w.idle.Broadcast()
	}
}

// Weight is a handle for a tensor's weights, or for one expert's slice of them. It is a small value
// that needs no closing.
type Weight struct {
	Tensor *Tensor
	Expert int // -1 for the whole tensor

	w      *Weights
	extent extent
}

// Lookup returns the handle of the tensor with that name.
func (w *Weights) Lookup(name string) (Weight, bool) {
	l, ok := w.Model.Lookup(name)
	if !ok {
		return Weight{}, false
	}
	return w.At(l), true
}

// At returns the handle for a location in w.Model, as its Lookup and Locate return it: for the
// expert's slice if the location names an expert and it is known where its slice is, else for the
// whole tensor.
func (w *Weights) At(l Location) Weight {
	h := Weight{Tensor: l.Tensor, Expert: -1, w: w, extent: extent{l.File, l.Tensor.Offset, l.Tensor.Size}}
	if stride := l.Tensor.ExpertStride(); stride > 0 && l.Expert >= 0 && l.Expert < l.Tensor.Experts() {
		h.Expert, h.extent.off, h.extent.size = l.Expert, l.Tensor.Offset+int64(l.Expert)*stride, stride
	}
	return h
}

func (h Weight) errorf(err error) error { return fmt.Errorf("tensor %.100q: %w", h.Tensor.Name, err) }

// Bytes returns the weights as they are in the file, without a copy: a slice of the mapping, which
// is valid until Close and must not be written to. Pages (4 KiB) are read from disk one by one as
// they are touched, so call Prefetch before going through a large tensor. If the file has been
// truncated, Bytes returns ErrTruncated. If the file is truncated later, touching the slice ends
// the process with SIGBUS. View is safe from that.
func (h Weight) Bytes() ([]byte, error) {
	if err := h.w.beginUse(); err != nil {
		return nil, h.errorf(err)
	}
	defer h.w.endUse()
	part := h.w.parts[h.extent.file]
	end := h.extent.off + h.extent.size
	if err := part.checkSize(end); err != nil {
		return nil, h.errorf(err)
	}
	return part.bytes[h.extent.off:end:end], nil
}

// View calls do with the weights as they are in the file, without a copy. The slice is valid until
// do returns and must not be written to. If do touches bytes that the file has lost or that the
// device cannot read, do ends there, its deferred calls run, and View returns ErrTruncated or EIO.
// Only the goroutine that called View is protected.
func (h Weight) View(do func([]byte) error) error {
	if err := h.w.beginUse(); err != nil {
		return h.errorf(err)
	}
	defer h.w.endUse()
	part := h.w.parts[h.extent.file]
	end := h.extent.off + h.extent.size
	err := part.guard(func() error { return do(part.bytes[h.extent.off:end:end]) })
	if err != nil {
		return h.errorf(err)
	}
	return nil
}

// prefetchBytes is the size of one request of Prefetch. Of a larger range, the kernel would read no
// more than its readahead or its largest request allows.
const prefetchBytes = 128 << 10

// Prefetch starts reading the weights from disk into the page cache and does not wait. It is
// advice: the kernel may do less.
func (h Weight) Prefetch() error {
	if err := h.w.beginUse(); err != nil {
		return h.errorf(err)
	}
	defer h.w.endUse()
	for done := int64(0); done < h.extent.size; done += prefetchBytes {
		h.w.parts[h.extent.file].prefetch(h.extent.off+done, min(prefetchBytes, h.extent.size-done))
	}
	return nil
}

// Floats are the values of a tensor, or of an expert's slice, in the order of the file. They are
// shared: do not write to them. Data must not be used after Release, because its memory is reused.
type Floats struct {
	Data []float32

	entry    *floatEntry
	cache    *floatCache
	released atomic.Bool
}

// Release returns the values to the cache. Call it once for each Float32; further calls do nothing.
func (v *Floats) Release() {
	if !v.released.Swap(true) {
		v.Data = nil
		v.cache.release(v.entry)
	}
}

// Float32 returns the weights as float32, computed by Dequantize. After Release they stay cached
// until their memory is needed. Then the values that were released longest ago are evicted. Float32
// never waits for a Release: it returns ErrCacheFull if the values do not fit together with those
// that have not been released. It returns ErrNoDecoder as Dequantize does, ErrTruncated or EIO as View
// does, and errors.ErrUnsupported for a big-endian file.
func (h Weight) Float32() (*Floats, error) {
	if err := h.w.beginUse(); err != nil {
		return nil, h.errorf(err)
	}
	defer h.w.endUse()
	if h.w.Model.Files[h.extent.file].BigEndian {
		return nil, h.errorf(fmt.Errorf("%w: weights in big-endian order", errors.ErrUnsupported))
	}
	typ := h.Tensor.Type
	if typ.BlockBytes() == 0 {
		return nil, h.errorf(fmt.Errorf("%v: %w", typ, ErrNoDecoder))
	}
	n := h.extent.size / typ.BlockBytes() * typ.BlockElems()
	e, err := h.w.cache.acquire(h.extent, n, h.dequantise)
	if err != nil {
		return nil, h.errorf(err)
	}
	return &Floats{Data: e.values, entry: e, cache: h.w.cache}, nil
}

// dequantise computes the values piece by piece, while the next pieces are being read from disk.
func (h Weight) dequantise(dst []float32) error {
	const ahead = 32 // pieces of prefetchBytes
	var (
		part  = h.w.parts[h.extent.file]
		typ   = h.Tensor.Type
		piece = prefetchBytes / typ.BlockBytes() * typ.BlockBytes()
		elems = piece / typ.BlockBytes() * typ.BlockElems()
		size  = h.extent.size
		asked = int64(0) // up to here, the kernel was asked to read
	)
	defer part.unmapPages(h.extent.off, size)
	return part.guard(func() error {
		for done := int64(0); done < size; done += piece {
			for ; asked < size && asked <= done+ahead*piece; asked += piece {
				part.prefetch(h.extent.off+asked, min(piece, size-asked))
			}
			src := part.bytes[h.extent.off+done:][:min(piece, size-done)]
			if err := Dequantize(dst[:min(elems, int64(len(dst)))], typ, src); err != nil {
				return err
			}
			dst = dst[min(elems, int64(len(dst))):]
		}
		return nil
	})
}
