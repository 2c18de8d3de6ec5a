package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// line is one line of a chart.
type line struct {
	class, name string
	value       func(Point) float32
	filled      bool // an area from zero
}

// chart draws points over time. Lines break where nothing is known.
type chart struct {
	title, unit string
	lines       []line
	objective   float32 // dashed; 0 is none
	spans       bool    // the values are spans of time, in seconds
	logarithmic bool
	format      func(float32) string
	span        string // what the axis covers, in words
}

const (
	chartWidth, chartHeight   = 240, 80
	sparkWidth, sparkHeight   = 120, 24
	logLeast, logDecadesShown = -3, 6.5563 // a millisecond to an hour
)

func waited(p Point) float32 { return p.Age }

// spark is the age of the oldest message of the last ten minutes, against the objective.
func spark(points []Point, objective time.Duration, hue string) *element {
	columns := squeeze(points, waited, sparkWidth/2)
	limit := float32(objective.Seconds())
	top := max(largest(columns), limit*1.25, 1)
	parts := []any{attr("viewBox", fmt.Sprintf("0 0 %d %d", sparkWidth, sparkHeight)), attr("preserveAspectRatio", "none"),
		attr("aria-hidden", "true")}
	scale := func(v float32) int { return int(math.Round(float64(sparkHeight - 1 - v/top*(sparkHeight-2)))) }
	if limit > 0 {
		parts = append(parts, el("path.objective", attr("d", fmt.Sprintf("M0 %dh%d", scale(limit), sparkWidth))))
	}
	parts = append(parts, el("path.line."+hue, attr("d", trace(columns, sparkWidth, scale))))
	return el("svg.spark", parts...)
}

// squeeze reduces points to columns. A column keeps its largest value, so that peaks survive.
func squeeze(points []Point, value func(Point) float32, columns int) []float32 {
	out := make([]float32, columns)
	for i := range out {
		out[i] = nan
		for j := i * len(points) / columns; j < (i+1)*len(points)/columns; j++ {
			if v := value(points[j]); !unknown(v) && (unknown(out[i]) || v > out[i]) {
				out[i] = v
			}
		}
	}
	return out
}

func largest(values []float32) (most float32) {
	for _, v := range values {
		if v > most {
			most = v
		}
	}
	return most
}

// trace draws columns, in whole coordinates relative to each other.
func trace(columns []float32, width int, scale func(float32) int) string {
	var d strings.Builder
	step := func(i int) int { return i * width / max(len(columns)-1, 1) }
	x, y, drawing := 0, 0, false
	for i, v := range columns {
		if unknown(v) {
			drawing = false
			continue
		}
		toX, toY := step(i), scale(v)
		if drawing {
			fmt.Fprintf(&d, "l%d %d", toX-x, toY-y)
		} else {
			fmt.Fprintf(&d, "M%d %dh1", toX, toY)
			toX++
		}
		x, y, drawing = toX, toY, true
	}
	return d.String()
}

// draw makes the chart, with its numbers in words for screen readers.
func (c chart) draw(points []Point) *element {
	squeezed := make([][]float32, len(c.lines))
	top := c.objective * 1.25
	for i, l := range c.lines {
		squeezed[i] = squeeze(points, l.value, chartWidth)
		top = max(top, largest(squeezed[i]))
	}
	if c.spans {
		top = roundUpSpan(top)
	} else {
		top = roundUp(top)
	}
	scale := func(v float32) int { return int(math.Round(float64(chartHeight - v/top*chartHeight))) }
	low, high := "0", c.format(top)
	if c.logarithmic {
		low, high = "1 ms", "1 h"
		scale = func(v float32) int {
			share := (math.Log10(max(float64(v), 1e-9)) - logLeast) / logDecadesShown
			return int(math.Round(chartHeight * (1 - min(max(share, 0), 1))))
		}
	}
	svg := []any{attr("viewBox", fmt.Sprintf("0 -1 %d %d", chartWidth, chartHeight+2)), attr("preserveAspectRatio", "none"),
		attr("aria-hidden", "true"),
		el("path.grid", attr("d", fmt.Sprintf("M0 %dh%dM0 %dh%dM0 0h%d", chartHeight, chartWidth, chartHeight/2, chartWidth, chartWidth)))}
	if c.objective > 0 {
		svg = append(svg, el("path.objective", attr("d", fmt.Sprintf("M0 %dh%d", scale(c.objective), chartWidth))))
	}
	legend := list{}
	for i, l := range c.lines {
		d := trace(squeezed[i], chartWidth, scale)
		if l.filled {
			svg = append(svg, el("path.area."+l.class, attr("d", area(squeezed[i], scale))))
		} else {
			svg = append(svg, el("path.line."+l.class, attr("d", d)))
		}
		latest := nan
		for _, p := range points {
			if v := l.value(p); !unknown(v) {
				latest = v
			}
		}
		text := "–"
		if !unknown(latest) {
			text = c.format(latest)
		}
		legend = append(legend, el("span.key."+l.class, l.name, " ", el("b", text)))
	}
	if c.objective > 0 {
		legend = append(legend, el("span.key.objective", "objective ", el("b", c.format(c.objective))))
	}
	return el("figure.chart", el("figcaption", el("b", c.title), " ", el("small", c.unit)),
		el("div.plot", el("span.high", high), el("span.low", low), el("svg", svg...)),
		el("div.axis", el("span", c.span), el("span", "now")), el("div.legend", legend))
}

// area is the same as trace, closed down to zero.
func area(columns []float32, scale func(float32) int) string {
	var d strings.Builder
	for i := 0; i < len(columns); i++ {
		if unknown(columns[i]) {
			continue
		}
		fmt.Fprintf(&d, "M%d %d", i, chartHeight)
		for ; i < len(columns) && !unknown(columns[i]); i++ {
			fmt.Fprintf(&d, "L%d %d", i, scale(columns[i]))
		}
		d.WriteString("L" + strconv.Itoa(i) + " " + strconv.Itoa(chartHeight) + "z")
	}
	return d.String()
}

// roundUpSpan makes the top of an axis of seconds a span that one unit writes.
func roundUpSpan(seconds float32) float32 {
	const minute, hour, day = 60, 3600, 86400
	for _, step := range []float32{1, 2, 5, 10, 20, 30, minute, 2 * minute, 5 * minute, 10 * minute, 20 * minute, 30 * minute,
		hour, 2 * hour, 4 * hour, 8 * hour, 12 * hour, day, 2 * day, 7 * day, 30 * day} {
		if seconds <= step {
			return step
		}
	}
	return seconds
}

// roundUp makes the top of an axis a round number.
func roundUp(v float32) float32 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow10(int(math.Floor(math.Log10(float64(v)))))
	for _, step := range []float64{1, 2, 5, 10} {
		if step*unit >= float64(v) {
			return float32(step * unit)
		}
	}
	return v
}
