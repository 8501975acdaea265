package device

// This file is the table of held matrices, in which clients find them by where they lie in a file.

import (
	"errors"
	"io/fs"
	"os"

	"tensorcast/gguf"
)

// errNotHeld says that a matrix is not held for now.
var errNotHeld = errors.New("it is not held")

// errLoading says that a matrix is not held yet, but may soon be.
var errLoading = errors.New("it is not held yet")

// location says where a matrix lies in which file, and its type and shape. Clients find it by these.
type location struct {
	dev, ino, offset, bytes uint64
	typ                     gguf.Type
	rows, cols              uint32
}

// heldFile is a file of which weights are held.
type heldFile struct {
	file *os.File
	info fs.FileInfo // when weights of it were first read
}

// unchanged reports whether the file is as it was when weights of it were read.
func (h *heldFile) unchanged() bool {
	now, err := h.file.Stat()
	return err == nil && now.Size() == h.info.Size() && now.ModTime().Equal(h.info.ModTime())
}

// heldMatrix is a matrix that is held.
type heldMatrix struct {
	weight *weight
	file   *heldFile
	sample uint64 // its sampleHash
}

// Besides the file's identity, some bytes of a matrix are compared with what the client has: the first
// samplePart bytes of each of sampleParts equal parts.
const (
	sampleParts = 4
	samplePart  = 32
)

// sampleHash hashes these bytes (FNV-1a, 64 bits) of a matrix that comes in pieces.
type sampleHash struct {
	total, done uint64 // bytes of the matrix, and those that have come
	sum         uint64
}

func newSampleHash(bytes uint64) *sampleHash {
	return &sampleHash{total: bytes, sum: 0xcbf29ce484222325}
}

func (s *sampleHash) write(b []byte) {
	end := s.done + uint64(len(b))
	for i := range uint64(sampleParts) {
		first := s.total / sampleParts * i
		for k := max(first, s.done); k < min(first+samplePart, s.total, end); k++ {
			s.sum = (s.sum ^ uint64(b[k-s.done])) * 0x100000001b3
		}
	}
	s.done = end
}

// findHeld takes a reference to the weight at l, for a client whose bytes there have the given hash. The error
// is errNotHeld or errLoading.
func (s *store) findHeld(l location, sample uint64) (*weight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.heldMatrices[l]
	switch {
	case ok && h.sample == sample && h.file.unchanged():
		h.weight.refs++
		return h.weight, nil
	case !ok && s.loading:
		return nil, errLoading
	}
	return nil, errNotHeld
}

// addHeld makes a matrix known at l. The caller's reference to the weight is the store's from now on. The
// weight is pinned, so that no upload displaces it.
func (s *store) addHeld(l location, h heldMatrix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.weight.pins++
	s.heldMatrices[l] = h
	s.heldChanges.Add(1)
}

// dropHeld ends the holding of a matrix. Its memory is free as soon as no product reads it. Clients' handles of
// it are stale.
func (s *store) dropHeld(l location) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.heldMatrices[l]
	if !ok {
		return
	}
	delete(s.heldMatrices, l)
	s.heldChanges.Add(1)
	h.weight.pins--
	h.weight.refs--
	h.weight.letGo = true
	if h.weight.users == 0 {
		s.freeWeight(h.weight)
	}
}

// needsPlane reports whether the matrix at l would have a plane more if there were room, and whether it needs
// that for the form's bound.
func (s *store) needsPlane(l location) (lacks, needs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.heldMatrices[l].weight
	return w != nil && w.form.canRefine, w != nil && w.form.belowBound
}

// setLoading says whether more may soon be held.
func (s *store) setLoading(loading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loading = loading
}

func (s *store) isLoading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loading
}
