package plan

// This file has what plans that give each of several things one of its forms, within so many bytes, have in common (a multiple-choice knapsack): each is exchanged for the next larger one where that wins most for a byte.

import (
	"cmp"
	"slices"
)

// Hull returns which of n forms of a thing are worth having, by increasing bytes and decreasing cost: those on the lower convex hull of cost over bytes. Each step from one to the next saves less for a byte
// than the one before.
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

// Fill takes steps of so many things in order, as far as their bytes have room. A thing of which a step does not fit keeps what it has: later steps of it begin where that one ends.
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
