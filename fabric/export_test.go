package fabric

// This file lets tests choose the kernels, which are otherwise chosen for the processor, and see
// the limits of frames.

import "tensorcast/fabric/kernel"

// SetLevel chooses the kernels.
func (o *Operand) SetLevel(l kernel.Level) { o.level = l }

// NewOperandSkipping is NewOperand with other thresholds. density is the share of trits that are
// not 0, up to which a plane becomes a list. groups is the share of groups of zeros from which on
// they are skipped.
func NewOperandSkipping(m *Matrix, density, groups float64) (*Operand, error) {
	return newOperand(m, thresholds{density, density, groups, groups})
}

// Skips returns how many planes are lists, and whether groups of zeros are skipped.
func (o *Operand) Skips() (lists int, groups bool) {
	for _, t := range o.terms {
		lists += len(t.sparse)
		groups = groups || t.skip != nil
	}
	return lists, groups
}

// SetOrder sets the Block of activations with which products are in ggml's order; 0 is none.
func (o *Operand) SetOrder(block int) { o.ordered = block }

// Sizes and limits of frames.
const (
	PieceBytes    = pieceBytes
	FrameAlign    = frameAlign
	MaxFrameTerms = maxFrameTerms
	MaxFrameName  = maxFrameName
)

// PayloadBytes is the length of the payload of a matrix without scales, from the end of the header
// to the checksum.
func PayloadBytes(m *Matrix) (int64, error) {
	_, payload, err := listSections(m, make([]int, len(m.Terms)+1))
	return payload, err
}
