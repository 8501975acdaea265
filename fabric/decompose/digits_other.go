//go:build !amd64 || noasm

package decompose

// This file replaces the assembly for digits on other processors, and in builds with the tag noasm.

type vector struct{}

func (p *packer) prepareVBMI() {}

func (p *packer) packStripes(planes [][]byte, at int, codes *[tileElems]byte, groups int) {
	p.packStripesGo(planes, at, codes, groups)
}
