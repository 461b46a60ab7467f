set terminal svg size 480,419 font 'sans-serif,14' background 'white'
set termoption noenhanced
set output 'x.svg'
set multiplot
reset
set border 3
set tics out nomirror scale 0.7
set xtics offset 0,0.3
set grid lc rgb '#dddddd' lw 1 dt 1
set errorbars 0.6
set lmargin at screen 0.162500
set rmargin at screen 0.962500
set tmargin at screen 0.918854
set bmargin at screen 0.226730
set label 1 'decode step' at graph 0.5, screen 0.945585 center rotate by 0
set label 2 'tokens of context' at graph 0.5, screen 0.128878 center rotate by 0
set label 3 'time of a step, ms' at screen 0.023333, graph 0.5 center rotate by 90
set key at screen 0.500000, screen 0.088305 center top vertical maxrows 1 Left reverse samplen 2.5 spacing 1.08 width 0 font ',12'
set logscale x
set xrange [59.7141115:274.374006]
set yrange [0:2.12]
set xtics ('64' 64, '128' 128, '256' 256)
set ytics ('0' 0, '0.5' 0.5, '1' 1, '1.5' 1.5, '2' 2)
$points0 << EOD
64 0.25
128 0.5
256 2
EOD
$bars0 << EOD
EOD
plot $points0 using 1:2 with linespoints lc rgb '#000000' lw 2 dt 1 pt 5 ps 0.9 title 'dense'
unset multiplot
set output
