package kernel

// This file multiplies by tables, without vector instructions: it looks up what a byte of a plane
// adds to the sum of its row. Each byte of a row has a table, which is made from the vector and
// used for all rows.

import "tensorcast/fabric/trit"

const (
	// TableRows is the largest number of rows in a batch, i.e. that share tables. The sums of all
	// its rows are kept at the same time.
	TableRows = 1024
	// minTableRows is the number of rows from which on tables are worth the time to make them.
	minTableRows = 32
	// tableBytes is the number of bytes of a row that are looked up before those of the next row.
	// Their tables fit into a first-level cache of 32 KiB.
	tableBytes = 32
	// tableZero is added to both sums of an entry, so that neither is negative. A byte has up to
	// five trits, and the sums of tableBytes entries stay below 16 bits.
	tableZero = 5 * 128
)

// byteTable has an entry for each value of a byte, with two sums of 16 bits, increased by
// tableZero. The low one is the sum of trits times values of the vector for the columns in one
// block. The high one is that for the columns in the next block.
type byteTable [256]uint32

// fillTable computes the table of a byte whose trits are multiplied by x[0], x[Stripe] and so on.
// The first inFirst of them are in the first block.
func fillTable(t *byteTable, layout trit.Layout, x []int8, inFirst int) {
	radix, trits := 3, 5
	if layout == trit.TwoBit {
		radix, trits = 4, 4
	}
	t[0] = tableZero | tableZero<<16
	n := 1
	for i := range trits {
		// A negative v changes the other sum, too, but this is undone: when all values are added,
		// both sums are in range.
		v := uint32(int32(x[i*Stripe]))
		if i >= inFirst {
			v <<= 16
		}
		// The entries so far get the digit 0 for this trit, which is the trit -1. Those of the
		// trits 0 and 1 follow.
		minus, zero, plus := t[:n], t[n:2*n], t[2*n:3*n]
		for j, s := range minus {
			zero[j], plus[j], minus[j] = s, s+v, s-v
		}
		n *= radix
	}
}

// multiplyByTables computes a product of one plane in blocks of 256. Floats are summed in the order
// of dot.
func multiplyByTables(p *Product) {
	for first := 0; first < p.Count; first += TableRows {
		plane := [1][]byte{p.Planes[0][first*p.Groups*64:]}
		q := *p
		q.Count, q.Planes = min(p.Count-first, TableRows), plane[:]
		q.Factors, q.Dst = p.Factors[first*p.FactorPitch:], p.Dst[first:]
		multiplyTableBatch(&q)
	}
}

// multiplyTableBatch does the work of multiplyByTables for up to TableRows rows.
func multiplyTableBatch(p *Product) {
	const blockStripes = 4
	var tables [tableBytes]byteTable
	var sums [2][TableRows]int32
	// For each row the integer of the current block, and of the one behind it.
	current, next := sums[0][:p.Count], sums[1][:p.Count]
	var totals [TableRows]float32
	stripes := groupTrits(p.Layout) / Stripe
	addScaled := func(block int, sums []int32) {
		// Bias is for digits, i.e. trits plus 1, but the tables are for trits.
		var bias int32
		for _, b := range p.Bias[16*block:][:16] {
			bias += b
		}
		end := min(blockStripes*Stripe*(block+1), stripes*Stripe*p.Groups)
		for _, v := range p.X[blockStripes*Stripe*block : end] {
			bias += int32(v)
		}
		for r, s := range sums {
			totals[r] += float32(p.Factors[r*p.FactorPitch+block] * float32(s+bias))
		}
	}
	for g := range p.Groups {
		block, into := g*stripes/blockStripes, g*stripes%blockStripes
		inFirst := min(stripes, blockStripes-into)
		for part := 0; part < 64; part += tableBytes {
			for j := range tables {
				fillTable(&tables[j], p.Layout, p.X[g*stripes*Stripe+part+j:], inFirst)
			}
			for r := range p.Count {
				row := (*[tableBytes]byte)(p.Planes[0][(r*p.Groups+g)*64+part:])
				const zeros = tableBytes * tableZero
				s := lookUp(&tables, row)
				current[r] += int32(s&0xffff) - zeros
				next[r] += int32(s>>16) - zeros
			}
		}
		addScaled(block, current)
		clear(current)
		current, next = next, current
		if into+stripes == 2*blockStripes || into+stripes > blockStripes && g == p.Groups-1 {
			addScaled(block+1, current)
			clear(current)
		}
	}
	for r, t := range totals[:p.Count] {
		p.Dst[r] += t
	}
}

// lookUp returns the sum of the table entries of a row's bytes.
func lookUp(tables *[tableBytes]byteTable, row *[tableBytes]byte) uint32 {
	var a, b uint32
	for j := 0; j < tableBytes; j += 4 {
		t, w := (*[4]byteTable)(tables[j:]), (*[4]byte)(row[j:])
		a += t[0][w[0]] + t[1][w[1]]
		b += t[2][w[2]] + t[3][w[3]]
	}
	return a + b
}

// hasTableLoop reports whether multiplyByTables supports this number of planes and this block.
func hasTableLoop(planes, block int) bool { return planes == 1 && block == 256 }

// BatchRows is the largest number of rows that a call of Multiply should get, or 0 if the number
// does not matter.
func (l Level) BatchRows(planes, block int) int {
	if l == Go && hasTableLoop(planes, block) {
		return TableRows
	}
	return 0
}
