package plan

// This file has what several kinds of plans have in common. A plan gives each of several things one
// of its forms, such that all forms together fit into a number of bytes (a multiple-choice
// knapsack). It replaces a form by the next larger one where this saves the most cost per byte.

import (
	"cmp"
	"slices"
)

// Hull returns which of the n forms of a thing are worth having, by increasing bytes and decreasing
// cost. They are those on the lower convex hull of cost over bytes: each step from one form to the
// next saves less per byte than the step before.
func Hull(n int, bytes func(form int) int64, cost func(form int) float64) (hull []int) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(bytes(a), bytes(b)), cmp.Compare(cost(a), cost(b)))
	})
	for _, c := range order {
		if len(hull) > 0 && cost(c) >= cost(hull[len(hull)-1]) {
			continue
		}
		for len(hull) > 1 {
			a, b := hull[len(hull)-2], hull[len(hull)-1]
			if (cost(a)-cost(b))*float64(bytes(c)-bytes(b)) > (cost(b)-cost(c))*float64(bytes(b)-bytes(a)) {
				break
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, c)
	}
	return hull
}

// Fill calls take for the steps in order, as long as their bytes fit into room. of returns the
// thing that a step belongs to, from 0 to things-1, and its bytes. If a step does not fit, its
// thing keeps the form that it has: later steps of this thing are left out, as they begin where
// this step ends.
func Fill[S any](things int, steps []S, room int64, of func(S) (thing int, bytes int64), take func(S)) {
	full := make([]bool, things)
	for _, s := range steps {
		thing, bytes := of(s)
		if full[thing] || bytes > room {
			full[thing] = true
			continue
		}
		take(s)
		room -= bytes
	}
}
