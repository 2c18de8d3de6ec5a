// Package console walks through the operators' page in a browser, on a live system: a relay of the built program with
// many destinations in all sorts of states. It looks for what a reader of the page would notice: errors on the console
// of the browser, violations of the policy, what accessibility tools find, text that is cut off, how long pages take
// and how large they are.
//
// It needs Chromium, and axe-core from npm, which "go run ./proof/fetch axe" puts into the cache.
package console
