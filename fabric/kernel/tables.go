package kernel

// This file multiplies without vector instructions, by tables: what a byte of a plane adds to the sum of its row is looked up. A table is made for each byte of a row, from the vector,
// and is used for all rows.

import "tensorcast/fabric/trit"

const (
	// TableRows is the number of rows that tables are made for at most: so many sums are kept for each.
	TableRows = 1024
	// fewRows take less time than tables for them.
	fewRows = 32
	// tableBytes are how many bytes of a row are looked up before the next row is: as many as have tables that fit into a first-level cache of 32 KiB.
	tableBytes = 32
	// tableZero is added to both sums of an entry, so that neither is negative. There are up to five trits, and with tableBytes entries no sum reaches 16 bits.
	tableZero = 5 * 128
)

// byteTable has for each byte two sums of 16 bits, increased by tableZero, of those of its trits times values of the vector that are in one block, and of those in the next.
type byteTable [256]uint32

// makeTable makes the table of a byte whose trits have the values x[0], x[Stripe] and so on; here of them are in the first block.
func makeTable(t *byteTable, layout trit.Layout, x []int8, here int) {
	radix, trits := 3, 5
	if layout == trit.TwoBit {
		radix, trits = 4, 4
	}
	t[0] = tableZero | tableZero<<16
	n := 1
	for i := range trits {
		// Both sums are in range again once all is added, so that it does not matter what a negative number does to the other one before.
		v := uint32(int32(x[i*Stripe]))
		if i >= here {
			v <<= 16
		}
		// The entries so far are those of the digit 0, which is the trit -1; those of 0 and 1 follow.
		minus, zero, plus := t[:n], t[n:2*n], t[2*n:3*n]
		for j, s := range minus {
			zero[j], plus[j], minus[j] = s, s+v, s-v
		}
		n *= radix
	}
}

// multiplyTables computes a product of one plane in blocks of 256. Floats are summed in the order of dot.
func multiplyTables(p *Product) {
	for first := 0; first < p.Count; first += TableRows {
		plane := [1][]byte{p.Planes[0][first*p.Groups*64:]}
		q := *p
		q.Count, q.Planes, q.Factors, q.Dst = min(p.Count-first, TableRows), plane[:], p.Factors[first*p.FactorPitch:], p.Dst[first:]
		multiplyByTables(&q)
	}
}

// multiplyByTables does that for up to TableRows rows.
func multiplyByTables(p *Product) {
	const blockStripes = 4
	var tables [tableBytes]byteTable
	var sums [2][TableRows]int32
	current, next := sums[0][:p.Count], sums[1][:p.Count] // integers of a row in the current block, and in the one behind it
	var totals [TableRows]float32
	stripes := groupTrits(p.Layout) / Stripe
	scale := func(block int, sums []int32) {
		// A plane's digits are trits plus 1, and so is Bias.
		var bias int32
		for _, b := range p.Bias[16*block:][:16] {
			bias += b
		}
		for _, v := range p.X[blockStripes*Stripe*block : min(blockStripes*Stripe*(block+1), stripes*Stripe*p.Groups)] {
			bias += int32(v)
		}
		for r, s := range sums {
			totals[r] += float32(p.Factors[r*p.FactorPitch+block] * float32(s+bias))
		}
	}
	for g := range p.Groups {
		block, into := g*stripes/blockStripes, g*stripes%blockStripes
		here := min(stripes, blockStripes-into)
		for part := 0; part < 64; part += tableBytes {
			for j := range tables {
				makeTable(&tables[j], p.Layout, p.X[g*stripes*Stripe+part+j:], here)
			}
			for r := range p.Count {
				row := (*[tableBytes]byte)(p.Planes[0][(r*p.Groups+g)*64+part:])
				const zeros = tableBytes * tableZero
				s := lookUp(&tables, row)
				current[r] += int32(s&0xffff) - zeros
				next[r] += int32(s>>16) - zeros
			}
		}
		scale(block, current)
		clear(current)
		current, next = next, current
		if into+stripes == 2*blockStripes || into+stripes > blockStripes && g == p.Groups-1 {
			scale(block+1, current)
			clear(current)
		}
	}
	for r, t := range totals[:p.Count] {
		p.Dst[r] += t
	}
}

// lookUp adds up the entries of a row's bytes.
func lookUp(tables *[tableBytes]byteTable, row *[tableBytes]byte) uint32 {
	var a, b uint32
	for j := 0; j < tableBytes; j += 4 {
		t, w := (*[4]byteTable)(tables[j:]), (*[4]byte)(row[j:])
		a += t[0][w[0]] + t[1][w[1]]
		b += t[2][w[2]] + t[3][w[3]]
	}
	return a + b
}

// tabled tells whether multiplyTables computes products of so many planes in blocks of so many columns.
func tabled(planes, block int) bool { return planes == 1 && block == 256 }

// BatchRows is how many rows are best multiplied in one call of Multiply, at most; 0 if that does not matter.
func (l Level) BatchRows(planes, block int) int {
	if l == Go && tabled(planes, block) {
		return TableRows
	}
	return 0
}
