//go:build !amd64 || noasm

package decompose

type vector struct{}

func (p *packer) prepare() {}

func (p *packer) stripes(planes [][]byte, at int, codes *[tileElems]byte, groups int) {
	p.stripesGo(planes, at, codes, groups)
}
