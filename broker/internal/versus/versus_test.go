package versus

import (
	"slices"
	"testing"
)

func TestTheMedianIsTheMiddle(t *testing.T) {
	t.Parallel()
	for want, values := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 1, 3, 2}, 7: {7}} {
		if got := median(values); got != want {
			t.Errorf("median of %v is %v, want %v", values, got, want)
		}
	}
}

func TestAContestMeasuresBothNearbyAndFarAway(t *testing.T) {
	if testing.Short() {
		t.Skip("takes twelve turns of 300 ms at least")
	}
	const address = "127.0.0.1:1"
	opened := map[string][]string{}
	turns := make(chan struct{}, 1)
	open := func(name string) func(*testing.B, string) Publish {
		return func(_ *testing.B, at string) Publish {
			opened[name] = append(opened[name], at)
			return func() int {
				turns <- struct{}{} // one at a time, or it blocks
				<-turns
				return 1
			}
		}
	}
	result := testing.Benchmark(func(b *testing.B) {
		clear(opened)
		Contest{Address: address, Adapter: open("adapter"), Loop: open("loop")}.run(b)
	})
	if a, l := opened["adapter"], opened["loop"]; len(a) != 3 || len(l) != 3 || a[0] != address || l[0] != address {
		t.Fatalf("connected to %v", opened)
	}
	if slices.Contains(opened["adapter"][1:], address) || opened["adapter"][1] == opened["adapter"][2] ||
		!slices.Equal(opened["loop"], opened["adapter"]) {
		t.Errorf("not through a proxy nearby and one far away: %v", opened)
	}
	for _, name := range []string{"ratio", "cpu-ratio", "far-ratio", "kept", "loop-kept"} {
		low, middle, high := result.Extra[name+"-low"], result.Extra[name], result.Extra[name+"-high"]
		if low <= 0 || low > middle || middle > high {
			t.Errorf("%s is %v (%v to %v)", name, middle, low, high)
		}
	}
}
