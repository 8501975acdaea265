package hot

// This file says of which model scores are.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"tensorcast/gguf"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

const identityBytes = sha256.Size

// identity tells models apart.
type identity [identityBytes]byte

func (id identity) String() string { return hex.EncodeToString(id[:16]) }

// identify returns the identity of a model: the SHA-256 of the sizes and fingerprints of its files, in the order of
// their text, so that it does not depend on their paths or addresses. A fingerprint is a hash of a file's metadata and
// of the table of its tensors (gguf.File.Fingerprint). Models that differ only in their weights have the same identity.
func identify(m *models.Model) identity {
	texts := make([]string, len(m.Files))
	for i, f := range m.Files {
		texts[i] = fmt.Sprintf("%s %d\n", f.Fingerprint, f.Size)
	}
	slices.Sort(texts)
	h := sha256.New()
	for _, text := range texts {
		h.Write([]byte(text))
	}
	return identity(h.Sum(nil))
}

// countExperts returns how many experts the layers of a model have, by their numbers.
func countExperts(parts []*gguf.File) map[int32]int {
	count := map[int32]int{}
	for _, part := range parts {
		for i := range part.Tensors {
			t := &part.Tensors[i]
			if n := t.Experts(); n > 0 && t.ExpertStride() > 0 && t.Layer() >= 0 {
				count[int32(t.Layer())] = n
			}
		}
	}
	return count
}

// checkGeometry returns an error if a model has other experts than scores are of. Layers may have no scores: those that
// no token reads, because they predict further tokens.
func checkGeometry(parts []*gguf.File, scores mixture.Scores) error {
	count := countExperts(parts)
	for number, layer := range scores {
		if count[number] != len(layer) {
			return fmt.Errorf("%w: they have %d experts in layer %d, the model %d",
				ErrOtherModel, len(layer), number, count[number])
		}
	}
	return nil
}
