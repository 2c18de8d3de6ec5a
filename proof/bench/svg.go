package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart is what a plot shows: a value for each category and series, with how far it varied.
type chart struct {
	title, subtitle string
	unit            string   // of the axis
	categories      []string // along the axis
	axis            string   // what they are
	series          []line
	lines           bool // points joined by lines instead of bars
}

type line struct {
	name   string
	of     func(Result) point
	points []point // one for each category
}

type point struct {
	value, low, high float64
	label            string
	missing          bool
}

// Plot writes a picture of the summaries of one run: SVG that is legible on a light and on a dark page.
func Plot(w io.Writer, summaries []Result) error {
	if len(summaries) == 0 {
		return fmt.Errorf("there is nothing to plot")
	}
	_, err := io.WriteString(w, chartOf(summaries).svg())
	return err
}

// chartOf decides what is worth seeing.
func chartOf(results []Result) *chart {
	const whiskers = "medians, whiskers from lowest to highest"
	first := results[0]
	c := &chart{unit: "messages/s", subtitle: whiskers}
	byContender := func(r Result) string { return r.Contender }
	switch {
	case first.Bench == "latency":
		c.title, c.unit = "From COMMIT to the consumer, through "+brokerName(first.Broker), "ms"
		if busy := first.Settings["busy_cores"]; busy != "" && busy != "0" {
			c.title += ", beside a load of " + busy + " of the cores"
		}
		c.subtitle = fmt.Sprintf("%d B; %s", first.Bytes, whiskers)
		c.add(results, func(r Result) string { return fmt.Sprintf("%s, %s/s", r.Contender, thousands(r.TargetRate)) },
			line{name: "p50", of: func(r Result) point { return r.point("%.2f", r.P50, func(s *Spread) [2]float64 { return s.P50 }) }},
			line{name: "p99", of: func(r Result) point { return r.point("%.2f", r.P99, func(s *Spread) [2]float64 { return s.P99 }) }})
	case first.Bench == "write":
		c.title, c.unit = "A transaction with a business row and a message", "transactions/s"
		c.subtitle = fmt.Sprintf("%s connections, %d B; %s", first.Settings["writers"], first.Bytes, whiskers)
		c.add(results, byContender, line{of: Result.ratePoint})
	case first.Bench == "strategies":
		c.title = "Strategies and the articles' algorithms, into Kafka"
		c.subtitle = fmt.Sprintf("%d B, workload %q; in brackets: the share of the floor", first.Bytes, first.Workload)
		c.add(results, func(r Result) string { return fmt.Sprintf("%s ×%d", r.Contender, r.Relays) }, line{of: Result.ratePoint})
	case first.Sweep != "":
		c.title, c.axis, c.lines = "Drain into "+brokerName(first.Broker)+", by "+first.Sweep, first.Sweep, true
		for _, r := range results { // in the order of the first value
			if !slices.ContainsFunc(c.series, func(l line) bool { return l.name == r.Contender }) {
				c.add(results, func(r Result) string { return r.Value }, line{name: r.Contender, of: Result.ratePoint})
			}
		}
	default:
		c.title = fmt.Sprintf("Drain of %s × %d B into %s", thousands(first.Messages), first.Bytes, brokerName(first.Broker))
		c.add(results, byContender, line{of: Result.ratePoint})
	}
	return c
}

func brokerName(broker string) string {
	if broker == "nats" {
		return "NATS JetStream"
	}
	return "Kafka"
}

// add adds series with a point for each category. In a picture of lines, a series is one contender's.
func (c *chart) add(results []Result, category func(Result) string, series ...line) {
	at := make([]int, len(results))
	for i, r := range results {
		name := category(r)
		if at[i] = slices.Index(c.categories, name); at[i] < 0 || !c.lines {
			at[i] = len(c.categories)
			c.categories = append(c.categories, name)
		}
	}
	for _, l := range series {
		l.points = make([]point, len(c.categories))
		for i := range l.points {
			l.points[i].missing = true
		}
		for i, r := range results {
			if !c.lines || r.Contender == l.name {
				l.points[at[i]] = l.of(r)
			}
		}
		c.series = append(c.series, l)
	}
}

func (r Result) point(format string, value float64, spread func(*Spread) [2]float64) point {
	p := point{value: value, low: value, high: value, label: fmt.Sprintf(format, value)}
	if r.Spread != nil {
		s := spread(r.Spread)
		p.low, p.high = s[0], s[1]
	}
	return p
}

func (r Result) ratePoint() point {
	p := r.point("", r.Rate, func(s *Spread) [2]float64 { return s.Rate })
	p.label = thousands(int(math.Round(r.Rate)))
	if r.RatioToFloor > 0 && r.RatioToFloor != 1 {
		p.label += fmt.Sprintf(" (%.2f)", r.RatioToFloor)
	}
	return p
}

// style gives the picture a ground of its own, so that it is legible whatever the page around it.
const style = `<style>
.ground{fill:#fff}text{fill:#1f2328;font:13px system-ui,sans-serif}.small{font-size:12px;fill:#59636e}.title{font-size:16px;font-weight:600}
.grid{stroke:#d1d9e0}.whisker{stroke:#1f2328;stroke-width:1.5;fill:none}
.f0{fill:#3b7dd8}.f1{fill:#c26a1b}.f2{fill:#2f8a57}.s0{stroke:#3b7dd8}.s1{stroke:#c26a1b}.s2{stroke:#2f8a57}.join{fill:none;stroke-width:2}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#e6edf3}.small{fill:#9198a1}.grid{stroke:#3d444d}.whisker{stroke:#e6edf3}
.f0{fill:#5c9df0}.f1{fill:#e0954a}.f2{fill:#57b982}.s0{stroke:#5c9df0}.s1{stroke:#e0954a}.s2{stroke:#57b982}}
</style>
`

const svgWidth = 760.0

func (c *chart) svg() string {
	if c.lines {
		return c.drawLines()
	}
	return c.drawBars()
}

// drawing is a picture in the making.
type drawing struct{ strings.Builder }

func (d *drawing) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(d, "<text x=\"%.1f\" y=\"%.1f\" class=%q text-anchor=%q>%s</text>\n", x, y, class, anchor, html.EscapeString(text))
}

func (d *drawing) stroke(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(d, "<line class=%q x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2)
}

func (c *chart) begin(height float64) *drawing {
	d := &drawing{}
	fmt.Fprintf(d, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"%s\">\n",
		svgWidth, height, svgWidth, height, html.EscapeString(c.title))
	d.WriteString(style)
	fmt.Fprintf(d, "<rect class=\"ground\" width=\"%.0f\" height=\"%.0f\" rx=\"8\"/>\n", svgWidth, height)
	d.text(20, 30, "title", "start", c.title)
	d.text(20, 50, "small", "start", c.subtitle)
	x := svgWidth - 20
	for i, l := range slices.Backward(c.series) { // from the right
		if l.name == "" {
			continue
		}
		x -= 8 * float64(len(l.name))
		d.text(x, 30, "label", "start", l.name)
		x -= 18
		fmt.Fprintf(d, "<rect class=\"f%d\" x=\"%.1f\" y=\"20\" width=\"12\" height=\"12\"/>\n", i%3, x)
		x -= 14
	}
	return d
}

func (d *drawing) end() string {
	d.WriteString("</svg>\n")
	return d.String()
}

// drawBars draws horizontal bars, a group for each category.
func (c *chart) drawBars() string {
	const left, right, top, thick, gap = 150.0, 130.0, 72.0, 18.0, 14.0
	group := thick*float64(len(c.series)) + gap
	bottom := top + group*float64(len(c.categories))
	d := c.begin(bottom + 44)
	ticks, highest := scale(c.highest())
	at := func(v float64) float64 { return left + v/highest*(svgWidth-left-right) }
	for _, t := range ticks {
		d.stroke("grid", at(t), top-6, at(t), bottom)
		d.text(at(t), bottom+18, "small", "middle", short(t))
	}
	d.text(svgWidth-20, bottom+18, "small", "end", c.unit)
	for i, category := range c.categories {
		y := top + group*float64(i)
		d.text(left-10, y+thick*float64(len(c.series))/2+4.5, "label", "end", category)
		for s, l := range c.series {
			p := l.points[i]
			fmt.Fprintf(d, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
				s%3, left, y, at(p.value)-left, thick-2)
			middle := y + thick/2 - 1
			if p.high > p.low {
				d.stroke("whisker", at(p.low), middle, at(p.high), middle)
				d.stroke("whisker", at(p.low), middle-4, at(p.low), middle+4)
				d.stroke("whisker", at(p.high), middle-4, at(p.high), middle+4)
			}
			d.text(at(max(p.value, p.high))+6, middle+4.5, "label", "start", p.label)
			y += thick
		}
	}
	return d.end()
}

// drawLines draws a line for each series over categories at even distances.
func (c *chart) drawLines() string {
	const left, right, top, bottom = 80.0, 40.0, 76.0, 330.0
	d := c.begin(bottom + 54)
	ticks, highest := scale(c.highest())
	y := func(v float64) float64 { return bottom - v/highest*(bottom-top) }
	step := (svgWidth - left - right) / float64(len(c.categories))
	x := func(i int) float64 { return left + step*(float64(i)+0.5) }
	for _, t := range ticks {
		d.stroke("grid", left, y(t), svgWidth-right, y(t))
		d.text(left-8, y(t)+4, "small", "end", short(t))
	}
	d.text(20, top-8, "small", "start", c.unit)
	for i, category := range c.categories {
		d.text(x(i), bottom+20, "label", "middle", category)
	}
	d.text(svgWidth/2, bottom+42, "small", "middle", c.axis)
	for s, l := range c.series {
		var path []string
		for i, p := range l.points {
			if p.missing {
				continue
			}
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(i), y(p.value)))
			if p.high > p.low {
				d.stroke("whisker", x(i), y(p.low), x(i), y(p.high))
			}
		}
		fmt.Fprintf(d, "<polyline class=\"join s%d\" points=%q/>\n", s%3, strings.Join(path, " "))
		for i, p := range l.points {
			if !p.missing {
				fmt.Fprintf(d, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s</title></circle>\n",
					s%3, x(i), y(p.value), html.EscapeString(l.name+": "+p.label))
			}
		}
	}
	return d.end()
}

func (c *chart) highest() float64 {
	highest := 0.0
	for _, l := range c.series {
		for _, p := range l.points {
			highest = max(highest, p.value, p.high)
		}
	}
	return highest
}

// scale returns round numbers from 0 to at least highest, at most seven of them, and the last one.
func scale(highest float64) ([]float64, float64) {
	if highest <= 0 || math.IsInf(highest, 0) || math.IsNaN(highest) {
		highest = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(highest)))
	step := unit
	for _, part := range []float64{0.2, 0.5, 1, 2} {
		if step = unit * part; highest/step <= 6 {
			break
		}
	}
	n := int(math.Ceil(highest/step - 1e-9))
	ticks := make([]float64, n+1)
	for i := range ticks {
		ticks[i] = float64(i) * step
	}
	return ticks, ticks[n]
}

// short writes the number beside a tick.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + " M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
