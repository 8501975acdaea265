package fabric_test

// This file has the example of the package's documentation.

import (
	"fmt"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
)

// This example multiplies two rows of weights by a vector. The weights are trits, with a factor for
// each row.
func ExampleOperand_GEMV() {
	const cols = 64
	rows := [2][cols]int8{}
	for c := range cols {
		rows[0][c] = 1             // adds all up
		rows[1][c] = int8(c%3) - 1 // -1, 0, 1, -1, 0, 1, ...
	}
	m := &fabric.Matrix{Rows: 2, Cols: cols, Layout: trit.TwoBit, Terms: []fabric.Term{{
		Planes: [][]byte{make([]byte, 2*trit.TwoBit.RowBytes(cols))},
		Scales: fabric.Scales{Block: cols, Half: []uint16{0x3c00, 0x3800}}, // 1 and 0.5 in half precision
	}}}
	for r := range rows {
		n := trit.TwoBit.RowBytes(cols)
		trit.TwoBit.Pack(m.Terms[0].Planes[0][r*n:(r+1)*n], rows[r][:])
	}
	o, err := fabric.NewOperand(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := fabric.NewActivations(cols, 32)
	if err != nil {
		fmt.Println(err)
		return
	}
	q := make([]int8, cols)
	for c := range q {
		q[c] = int8(c)
	}
	x.Set(q, []float32{1, 1})
	y := make([]float32, 2)
	o.GEMV(y, x, &fabric.Scratch{})
	fmt.Println(y)
	// Output: [2016 -10.5]
}
