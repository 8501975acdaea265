package tabular

// This file writes numbers and sizes for people.

import (
	"math"
	"strconv"
)

// Number is v with three significant digits at most. It never has an exponent, as in 1.01e+03.
func Number(v float64) string {
	const digits = 3
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	if err != nil {
		rounded = v
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// Size is a number of bytes with three significant digits at most, in B, KiB, MiB, GiB, TiB or PiB. From 1000 of
// a unit on it is in the next one: "764 MiB", "0.986 GiB". Functions of humanize round to one or two digits,
// and have up to 1023 of a unit.
func Size(bytes float64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	const most = 999.5 // what is more is not below 1000 with three digits
	v, unit := bytes, "B"
	for i := 0; i < len(units) && math.Abs(v) >= most; i++ {
		v, unit = v/1024, units[i]
	}
	return Number(v) + " " + unit
}
