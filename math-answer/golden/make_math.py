r"""Makes math.jsonl beside this file: answers of every kind, and what math-verify says of each.

    pip install math-verify==0.9.0 trl==1.16.0 && python make_math.py

A line has a dataset's answer (`gold`), a completion's text (`answer`), whether it is right (`right`: by hand, below), and two verdicts:
`verify` is that of `verify(parse(gold), parse(answer))` with the defaults, `trl` that of `trl.rewards.accuracy_reward`, null where it skips a
row whose gold it cannot read.
"""

import json
import logging
from pathlib import Path

from math_verify import parse, verify
from trl.rewards import accuracy_reward

logging.disable(logging.CRITICAL)

# Kind: (gold, right answers, wrong answers). Answers are boxed, but in the kinds at the end, which are whole texts.
KINDS = {
    "integers": [
        ("5", ["5", "+5", "5.0", "5.", "05", "10/2", "3+2", "\\frac{10}{2}"], ["6", "-5", "50", "5.1", "0.5", "\\frac{5}{2}"]),
        ("-12", ["-12", "-12.0", "- 12", "-\\frac{24}{2}"], ["12", "-1.2", "-120"]),
        ("0", ["0", "0.0", "-0", "1-1"], ["1", "00.1", "\\frac{1}{100}"]),
        ("1024", ["1024", "2^{10}", "2^10", "1,024", "4^5"], ["1023", "2^9", "1.024"]),
        ("123456789012345678901234567890", ["123456789012345678901234567890"], ["123456789012345678901234567891"]),
    ],
    "thousands": [
        ("1,234,567", ["1234567", "1,234,567", "1{,}234{,}567", "1\\,234\\,567"], ["1234", "1,234", "1,234,568"]),
        ("10000", ["10,000", "10{,}000", "10^4", "10 000", "10\\!,\\!000"], ["1,000", "10", "100,000"]),
        ("2500", ["2,500", "$2,500$", "2.5\\times 10^3", "2500.00"], ["2.5", "2,50", "25,00,0"]),
    ],
    "decimals": [
        ("0.5", ["0.5", ".5", "\\frac12", "0.50", "1/2"], ["0.05", "5", "0.51"]),
        ("3.14", ["3.14", "3.140", "\\frac{157}{50}"], ["3.1", "3.1416", "\\pi", "314"]),
        ("\\frac{1}{3}", ["0.333333", "0.3333333333"], ["0.33", "0.3334", "0.3"]),
        ("2.75", ["2\\frac{3}{4}", "\\frac{11}{4}", "2.75"], ["2.7", "2.57", "\\frac{3}{4}"]),
        ("-0.125", ["-\\frac18", "-.125", "-\\frac{1}{8}"], ["0.125", "-\\frac{1}{4}"]),
        ("0.00001", ["0.00001", "10^{-5}", "1\\times10^{-5}", "\\frac{1}{100000}"], ["0.00002", "0.0001", "0"]),
        ("0.0000001", ["10^{-7}"], ["0.0000002", "0"]),
    ],
    "fractions": [
        ("\\frac{3}{4}", ["\\frac34", "3/4", "\\dfrac{3}{4}", "\\tfrac{3}{4}", "0.75", "\\frac{6}{8}", "\\frac{-3}{-4}"], ["\\frac{4}{3}", "\\frac{3}{5}", "34", "0.34"]),
        ("-\\frac{2}{7}", ["\\frac{-2}{7}", "\\frac{2}{-7}", "-2/7", "-\\dfrac27"], ["\\frac27", "-\\frac72"]),
        ("1\\frac{1}{2}", ["1.5", "\\frac32", "1\\frac12", "1 \\frac{1}{2}"], ["\\frac12", "1", "\\frac{11}{2}"]),
        ("\\frac{355}{113}", ["\\frac{355}{113}", "355/113"], ["\\pi", "3.141592", "\\frac{113}{355}"]),
        ("\\frac{a}{b}", ["a/b", "\\dfrac{a}{b}", "\\frac{2a}{2b}"], ["\\frac{b}{a}", "ab"]),
        ("\\frac{\\frac{1}{2}}{3}", ["\\frac16", "\\frac{1}{6}", "1/6"], ["\\frac{3}{2}", "\\frac{2}{3}"]),
        ("\\frac{1}{72}", ["\\frac1{72}", "1/72"], ["\\frac{7}{2}", "72"]),
    ],
    "percentages": [
        ("50\\%", ["50\\%", "50", "0.5", "\\frac12", "50.0\\%", "50 \\%"], ["5\\%", "500", "0.05", "50.5\\%"]),
        ("12.5", ["12.5\\%", "12.5"], ["1.25\\%", "125\\%"]),
        ("\\frac{1}{4}", ["25\\%", "0.25"], ["2.5\\%", "250\\%"]),
    ],
    "roots": [
        ("\\sqrt{2}", ["\\sqrt2", "2^{1/2}", "\\frac{2}{\\sqrt{2}}", "1.414214", "2^{\\frac12}", "\\sqrt[2]{2}"], ["2", "1.41", "\\sqrt{3}", "-\\sqrt{2}"]),
        ("2\\sqrt{3}", ["\\sqrt{12}", "2 \\sqrt 3", "2\\cdot\\sqrt{3}", "\\frac{6}{\\sqrt{3}}"], ["\\sqrt{6}", "3\\sqrt{2}", "2+\\sqrt{3}", "\\sqrt{3}"]),
        ("\\frac{\\sqrt{3}}{2}", ["\\frac{\\sqrt3}2", "\\sqrt{\\frac{3}{4}}", "\\sqrt{3}/2", "\\frac12\\sqrt3"], ["\\frac{3}{2}", "\\sqrt{\\frac{3}{2}}", "\\frac{2}{\\sqrt{3}}"]),
        ("\\sqrt[3]{8}", ["2", "8^{1/3}", "8^{\\frac{1}{3}}"], ["\\sqrt{8}", "8"]),
        ("\\sqrt[3]{-8}", ["-2"], ["2"]),
        ("\\sqrt{2}+\\sqrt{3}", ["\\sqrt3+\\sqrt2", "\\sqrt{5+2\\sqrt{6}}"], ["\\sqrt5", "\\sqrt{6}"]),
        ("\\frac{1+\\sqrt{5}}{2}", ["\\frac{\\sqrt5+1}{2}", "\\frac12+\\frac{\\sqrt5}{2}"], ["\\frac{1-\\sqrt5}{2}", "1.618"]),
        ("5\\sqrt{5}", ["5^{3/2}", "\\sqrt{125}", "5^{1.5}"], ["\\sqrt{25}", "25"]),
        ("3-2\\sqrt{2}", ["(\\sqrt2-1)^2", "-2\\sqrt2+3"], ["3+2\\sqrt2", "(\\sqrt2+1)^2"]),
    ],
    "powers": [
        ("2^{10}", ["1024", "4^5", "2^9\\cdot 2"], ["20", "2^{11}"]),
        ("5\\times 10^3", ["5000", "5\\cdot10^3", "5 \\times 10^{3}"], ["500", "5\\times10^4", "5 \\times 103"]),
        ("10^{-3}", ["0.001", "\\frac{1}{1000}", "1e-03"], ["-1000", "0.01"]),
        ("10^{100}", ["10^{100}", "10^{99}\\cdot10"], ["10^{101}", "10^{100}+1"]),
        ("2^{100}-1", ["1267650600228229401496703205375", "-1+2^{100}"], ["1267650600228229401496703205376", "2^{100}"]),
        ("x^{2}", ["x^2", "x\\cdot x", "x*x", "(-x)^2"], ["2x", "x^3", "x", "-x^2"]),
        ("2^{2^3}", ["256", "2^8"], ["64", "4^3"]),
        ("7!", ["5040", "7\\cdot6!"], ["7", "720"]),
        ("\\binom{6}{2}", ["15", "\\frac{6!}{2!4!}"], ["30", "\\binom{6}{3}"]),
    ],
    "constants": [
        ("\\pi", ["\\pi", "3.141593", "\\frac{2\\pi}{2}", "\u03c0"], ["3.14", "3.14159", "\\frac{22}{7}", "3"]),
        ("\\frac{\\pi}{2}", ["\\pi/2", "\\frac12\\pi", "0.5\\pi", "\\frac{1}{2} \\pi"], ["\\pi", "2\\pi", "1.57"]),
        ("36\\pi", ["36\\pi", "36 \\cdot \\pi", "\\pi \\cdot 36", "6^2\\pi"], ["36", "113", "35\\pi"]),
        ("e^2", ["e^{2}", "\\exp(2)", "e\\cdot e"], ["2e", "7.39", "e"]),
        ("\\ln 2", ["\\ln(2)", "\\ln{2}", "\\frac12\\ln4"], ["\\ln 3", "\\log 2", "2"]),
        ("\\log_2 8", ["3", "\\frac{\\ln 8}{\\ln 2}"], ["4", "8"]),
        ("\\log_2 512", ["9"], ["8", "512"]),
        ("\\infty", ["\\infty", "+\\infty"], ["-\\infty", "0", "9^{9^{9}}"]),
        ("-\\infty", ["-\\infty"], ["\\infty"]),
        ("\\sin 30^\\circ", ["\\sin 30^\\circ"], ["\\cos 30^\\circ"]),
        ("\\arctan 1", ["\\frac{\\pi}{4}", "\\arctan(1)", "\\tan^{-1}(1)"], ["45", "\\frac{\\pi}{2}", "1"]),
        ("\\cos\\frac{\\pi}{3}", ["\\frac12", "\\sin\\frac{\\pi}{6}"], ["\\frac{\\sqrt3}{2}"]),
    ],
    "complex": [
        ("2+3i", ["3i+2", "2 + 3i", "2+3\\cdot i"], ["2-3i", "3+2i", "5i", "5"]),
        ("i", ["\\sqrt{-1}", "i"], ["-i", "1"]),
        ("-1", ["i^2", "e^{i\\pi}"], ["i", "i^4"]),
        ("\\frac{1+i}{\\sqrt2}", ["\\frac{\\sqrt2}{2}+\\frac{\\sqrt2}{2}i", "e^{i\\pi/4}"], ["\\frac{1-i}{\\sqrt2}"]),
    ],
    "intervals": [
        ("(1,2)", ["(1,2)", "(1, 2)", "\\left(1,2\\right)", "(\\frac22,2)"], ["[1,2]", "(1,2]", "(1,3)", "(2,1)", "1"]),
        ("[0,\\infty)", ["[0,\\infty)", "[0, +\\infty)", "\\left[0,\\infty\\right)"], ["(0,\\infty)", "[0,1)", "(-\\infty,0]"]),
        ("[-1,1]", ["[-1,1]", "\\left[-1, 1\\right]"], ["(-1,1)", "[-1,1)", "[1,-1]", "\\{-1,1\\}"]),
        ("(-\\infty,2)\\cup(3,\\infty)", ["(-\\infty, 2) \\cup (3, \\infty)", "(3,\\infty)\\cup(-\\infty,2)"], ["(-\\infty,2)", "(-\\infty,2]\\cup[3,\\infty)", "(2,3)"]),
        ("x\\in[1,2]", ["[1,2]", "x \\in [1,2]"], ["(1,2)", "[1,3]"]),
        ("(-\\infty,\\infty)", ["\\mathbb{R}", "(-\\infty, +\\infty)"], ["(0,\\infty)", "\\mathbb{Z}"]),
        ("\\left[\\frac12,\\frac32\\right)", ["[0.5,1.5)", "[\\frac{1}{2},\\frac{3}{2})"], ["(0.5,1.5)", "[0.5,1.5]"]),
    ],
    "inequalities": [
        ("x>5", ["x>5", "x > 5", "5<x", "(5,\\infty)"], ["x\\ge5", "x<5", "x>6", "[5,\\infty)"]),
        ("1\\le x<2", ["1\\leq x<2", "[1,2)", "2>x\\ge1"], ["1<x<2", "1\\le x\\le 2", "(1,2)"]),
        ("x\\le-3", ["x\\leq -3", "-3\\ge x", "(-\\infty,-3]"], ["x<-3", "x\\ge-3", "(-\\infty,3]"]),
        ("2x<6", ["x<3"], ["x>3", "x<6"]),
        ("-x<3", ["x>-3"], ["x<-3", "x>3"]),
        ("x\\ne 3", ["x \\neq 3"], ["x=3", "x\\ne4"]),
    ],
    "sets": [
        ("\\{1,2,3\\}", ["\\{3,2,1\\}", "\\{1, 2, 3\\}", "1,2,3", "\\left\\{1,2,3\\right\\}"], ["\\{1,2\\}", "\\{1,2,4\\}", "\\{1,2,3,4\\}", "6"]),
        ("1,2", ["2,1", "1, 2", "\\{1,2\\}", "1\\text{ and }2", "1\\text{ or }2"], ["1", "1,3", "12", "2,2"]),
        ("-2,2", ["\\pm 2", "2,-2", "\\{-2,2\\}"], ["2", "-2", "\\pm 3"]),
        ("\\emptyset", ["\\emptyset", "\\{\\}", "\\varnothing"], ["0", "\\{0\\}"]),
        ("\\left\\{\\frac12,\\sqrt2\\right\\}", ["\\{\\sqrt{2},0.5\\}", "\\frac{1}{2}, \\sqrt{2}"], ["\\{0.5,2\\}"]),
        ("\\{5\\}", ["\\{5\\}", "5"], ["\\{6\\}", "\\emptyset"]),
        ("3,5,7", ["7,5,3", "3, 5, 7", "\\{3,5,7\\}", "3,5\\text{ and }7"], ["3,5", "3,5,7,9", "357"]),
    ],
    "tuples": [
        ("(3,4)", ["(3,4)", "(3, 4)", "\\left(3,4\\right)", "(\\frac{6}{2},4)"], ["(4,3)", "(3,5)", "7", "3"]),
        ("(1,-2,3)", ["(1,-2,3)", "(1, -2, 3)"], ["(1,2,3)", "(3,-2,1)", "(1,-2)", "(1,-2,3,0)"]),
        ("\\left(\\frac12,-\\frac34\\right)", ["(0.5,-0.75)", "\\left(\\dfrac{1}{2}, -\\dfrac{3}{4}\\right)"], ["(0.5,0.75)", "(-0.75,0.5)"]),
        ("(x,y)=(1,2)", ["(1,2)", "(x,y)=(1,2)"], ["(2,1)", "(1,3)"]),
        ("(1,2),(3,4)", ["(1,2),(3,4)", "(3,4),(1,2)", "(1, 2), (3, 4)"], ["(1,2)", "(1,3),(2,4)", "1,2,3,4"]),
        ("(2,\\frac{\\pi}{3})", ["\\left(2,\\frac{\\pi}{3}\\right)", "(2,\\pi/3)"], ["(2,\\pi)", "(\\frac{\\pi}{3},2)"]),
    ],
    "plus and minus": [
        ("2\\pm\\sqrt3", ["2+\\sqrt3,2-\\sqrt3", "2\\pm\\sqrt{3}", "\\{2-\\sqrt3,2+\\sqrt3\\}"], ["2+\\sqrt3", "2\\pm\\sqrt2", "\\pm\\sqrt3"]),
        ("\\frac{-1\\pm\\sqrt{5}}{2}", ["\\frac{-1+\\sqrt5}{2},\\frac{-1-\\sqrt5}{2}"], ["\\frac{1\\pm\\sqrt5}{2}", "\\frac{-1+\\sqrt5}{2}"]),
        ("x=\\pm 3", ["\\pm3", "3,-3", "x = 3, x = -3", "x=3\\text{ or }x=-3"], ["3", "x=3"]),
    ],
    "units": [
        ("10\\text{ cm}", ["10", "10\\text{ cm}", "10\\text{cm}", "10\\mathrm{~cm}", "10 \\text{ centimeters}", "10cm"], ["100", "1"]),
        ("90^\\circ", ["90", "90^\\circ", "90^{\\circ}", "90\\text{ degrees}", "90\\degree"], ["45^\\circ", "9"]),
        ("\\$5.50", ["5.50", "\\$5.5", "5.5", "\\frac{11}{2}"], ["5", "550"]),
        ("12\\text{ m}^2", ["12", "12\\text{ m}^2", "12 \\text{ square meters}", "12 m^2"], ["144", "24"]),
        ("5\\sqrt{3}\\text{ km}", ["5\\sqrt{3}", "5\\sqrt3\\text{ km}", "\\sqrt{75}"], ["5", "15"]),
        ("60\\text{ miles per hour}", ["60", "60\\text{ mph}"], ["6", "600"]),
        ("8\\text{ hours}", ["8", "8\\text{ hours}", "8 hours"], ["80"]),
        ("25", ["25\\text{ cents}", "25\\text{ apples}", "25\\text{ square units}"], ["52\\text{ cents}"]),
    ],
    "matrices": [
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", ["\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}", "\\begin{pmatrix}1&\\frac42\\\\3&2^2\\end{pmatrix}"], ["\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}"]),
        ("\\begin{pmatrix}1\\\\-2\\end{pmatrix}", ["\\begin{bmatrix}1\\\\-2\\end{bmatrix}", "\\begin{pmatrix}1\\\\-2\\end{pmatrix}"], ["\\begin{pmatrix}-2\\\\1\\end{pmatrix}", "\\begin{pmatrix}1&-2\\end{pmatrix}"]),
        ("\\begin{pmatrix}\\frac12&0\\\\0&\\frac12\\end{pmatrix}", ["\\begin{pmatrix}0.5&0\\\\0&0.5\\end{pmatrix}", "\\frac12\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}"], ["\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}"]),
    ],
    "equations": [
        ("x=5", ["5", "x=5", "x = 5", "x=\\frac{10}{2}"], ["x=6", "y=5", "x=-5"]),
        ("5", ["x=5", "y = 5", "f(2)=5"], ["x=4", "5=4"]),
        ("y=2x+1", ["y=2x+1", "y = 1+2x", "2x+1", "y-2x=1"], ["y=2x-1", "y=x+1", "2x"]),
        ("x+y=3", ["x+y=3", "y=3-x", "2x+2y=6"], ["x+y=4", "x-y=3"]),
        ("x^2+y^2=25", ["x^2+y^2=25", "x^2 + y^2 - 25 = 0", "y^2+x^2=5^2"], ["x^2+y^2=5", "x^2-y^2=25"]),
        ("f(x)=x^2", ["x^2", "f(x)=x^2"], ["2x", "f(x)=x"]),
        ("x=1,y=2", ["x=1,y=2", "y=2,x=1", "(1,2)"], ["x=2,y=1", "x=1,y=3"]),
        ("a=b=3", ["3", "a=b=3"], ["4"]),
    ],
    "polynomials": [
        ("x^2+2x+1", ["(x+1)^2", "1+2x+x^2", "x(x+2)+1", "(1+x)(x+1)"], ["x^2+2x", "x^2+x+1", "(x-1)^2", "x^2+1"]),
        ("(x-1)(x+2)", ["x^2+x-2", "(x+2)(x-1)"], ["x^2-x-2", "(x+1)(x-2)"]),
        ("a^2-b^2", ["(a-b)(a+b)", "-b^2+a^2"], ["a^2+b^2", "(a-b)^2", "b^2-a^2"]),
        ("3x+2y", ["2y+3x", "3x + 2y"], ["3y+2x", "5xy", "3x-2y"]),
        ("x^3-x", ["x(x-1)(x+1)", "x(x^2-1)"], ["x^3+x", "x^2-1"]),
        ("n(n+1)/2", ["\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}", "\\frac12 n(n+1)"], ["n(n+1)", "\\frac{n(n-1)}{2}"]),
        ("\\frac{x}{2}+\\frac{1}{3}", ["\\frac{3x+2}{6}", "0.5x+\\frac13"], ["\\frac{3x+2}{5}", "\\frac{x+1}{5}"]),
        ("(x+y)^3", ["x^3+3x^2y+3xy^2+y^3"], ["x^3+y^3"]),
    ],
    "expressions": [
        ("\\frac{x^2-1}{x-1}", ["x+1", "\\frac{(x-1)(x+1)}{x-1}"], ["x-1", "x^2+1"]),
        ("\\frac{1}{x}+\\frac{1}{y}", ["\\frac{x+y}{xy}"], ["\\frac{2}{x+y}", "\\frac{1}{x+y}"]),
        ("\\sin^2 x+\\cos^2 x", ["1"], ["0", "2"]),
        ("2\\sin x\\cos x", ["\\sin 2x", "\\sin(2x)"], ["\\sin x", "2\\sin x"]),
        ("e^{x+1}", ["e\\cdot e^x", "e^{1+x}"], ["e^x+1", "e^{x}"]),
        ("\\ln(xy)", ["\\ln(x y)", "\\ln (yx)"], ["\\ln x \\ln y", "\\ln(x+y)"]),
        ("|x-1|", ["|1-x|", "\\left|x-1\\right|"], ["x-1", "|x|-1"]),
        ("\\frac{\\sqrt{x}}{x}", ["\\frac{1}{\\sqrt{x}}", "x^{-1/2}"], ["\\sqrt{x}", "x^{1/2}"]),
        ("\\sqrt{x^2}", ["|x|"], ["-x"]),
        ("\\lfloor 3.7\\rfloor", ["3"], ["4", "3.7"]),
        ("2^{n+1}-2", ["2(2^n-1)", "2\\cdot2^n-2"], ["2^{n}-2", "2^{n+1}"]),
        ("x_1+x_2", ["x_2+x_1"], ["x_1+x_1", "x_1"]),
        ("\\alpha+\\beta", ["\\beta+\\alpha"], ["\\alpha-\\beta", "\\alpha"]),
    ],
    "choices": [
        ("\\text{(A)}", ["A", "\\text{A}", "(A)", "\\text{(A)}", "\\textbf{(A)}"], ["B", "\\text{(B)}"]),
        ("C", ["C", "\\text{C}", "\\text{(C)}", "(C)", "\\mathrm{C}"], ["A", "(D)", "CC"]),
        ("\\text{B}", ["\\text{(B)}", "B", "(B)"], ["\\text{(C)}", "8"]),
    ],
    "words": [
        ("\\text{east}", ["\\text{east}", "\\text{East}", "\\text{ east}", "\\textbf{east}"], ["\\text{west}", "\\text{north east}"]),
        ("\\text{Monday}", ["\\text{Monday}", "\\text{monday}", "Monday"], ["\\text{Tuesday}"]),
        ("\\text{even}", ["\\text{even}", "\\text{Even}"], ["\\text{odd}"]),
        ("\\text{Yes}", ["\\text{Yes}", "\\text{yes}", "yes"], ["\\text{No}", "no"]),
        ("\\text{no solution}", ["\\text{no solution}", "\\text{No solution}"], ["0", "\\text{solution}"]),
    ],
    "bases and ratios": [
        ("1011_2", ["1011_2", "1011_{2}"], ["1010_2", "1011_21"]),
        ("3:2", ["3:2", "\\frac32", "6:4"], ["2:3", "3", "32"]),
        ("204_5", ["204_5", "204"], ["205_5"]),
        ("0.\\overline{3}", ["\\frac13", "0.\\overline{3}"], ["0.3", "\\frac{3}{10}"]),
    ],
}

# Written when the code was done, and left as they came out.
KINDS["held out"] = [
    ("\\frac{5\\pi}{12}", ["\\frac{5}{12}\\pi", "5\\pi/12", "\\dfrac{5\\pi}{12}"], ["\\frac{5}{12}", "\\frac{12\\pi}{5}"]),
    ("-\\frac{35}{9}", ["-3\\frac{8}{9}", "-35/9", "\\frac{-35}{9}"], ["\\frac{35}{9}", "-3.89"]),
    ("2k+2", ["2(k+1)", "2 + 2k"], ["2k+1", "k+2"]),
    ("[-2,7]", ["[-2, 7]", "-2\\le x\\le 7"], ["(-2,7)", "[-2,7)"]),
    ("(0,9)\\cup(9,36)", ["(0, 9) \\cup (9, 36)", "(9,36)\\cup(0,9)"], ["(0,36)", "(0,9)\\cap(9,36)"]),
    ("-\\sqrt{3}", ["-\\sqrt3", "-3^{1/2}", "-\\frac{3}{\\sqrt{3}}"], ["\\sqrt{3}", "-3"]),
    ("1\\pm\\sqrt{19}", ["1+\\sqrt{19}, 1-\\sqrt{19}", "1 - \\sqrt{19}\\text{ and }1 + \\sqrt{19}"], ["1+\\sqrt{19}", "\\pm\\sqrt{19}"]),
    ("\\left(-\\infty,-\\frac{1}{2}\\right)\\cup\\left(-\\frac{1}{2},\\infty\\right)", ["(-\\infty,-0.5)\\cup(-0.5,\\infty)"], ["(-\\infty,\\infty)", "(-\\infty,-\\frac12]\\cup(-\\frac12,\\infty)"]),
    ("32348", ["32,348", "32348.0"], ["32384", "32,34"]),
    ("\\frac{9\\sqrt{3}}{4}", ["\\frac94\\sqrt3", "2.25\\sqrt{3}", "9\\sqrt{3}/4"], ["\\frac{9\\sqrt{3}}{2}", "\\frac{\\sqrt{3}}{4}"]),
    ("y^4-2y^3+7y^2+y-5", ["7y^2+y-5+y^4-2y^3", "y^4 - 2y^3 + 7y^2 + y - 5"], ["y^4-2y^3+7y^2+y+5"]),
    ("2516_8", ["2516_8", "2516_{8}"], ["2561_8"]),
    ("3R^2", ["3R^2", "3 R^{2}"], ["R^2", "3R"]),
    ("\\begin{pmatrix}-2\\\\-14\\\\-7\\end{pmatrix}", ["\\begin{pmatrix} -2 \\\\ -14 \\\\ -7 \\end{pmatrix}", "\\begin{bmatrix}-2\\\\-14\\\\-7\\end{bmatrix}"], ["\\begin{pmatrix}2\\\\14\\\\7\\end{pmatrix}"]),
    ("\\$18.90", ["18.90", "\\$18.9", "18.9\\text{ dollars}"], ["18.09", "1890"]),
    ("11:00\\text{ a.m.}", ["11:00\\text{ a.m.}"], ["10:00\\text{ a.m.}"]),
    ("\\cot x", ["\\frac{\\cos x}{\\sin x}", "\\cot(x)", "\\frac{1}{\\tan x}"], ["\\tan x", "\\sin x"]),
    ("x^2-7x+10", ["(x-5)(x-2)", "(x-2)(x-5)"], ["x^2+7x+10"]),
    ("\\text{Navin}", ["\\text{Navin}", "Navin"], ["\\text{Luis}"]),
    ("\\frac{3}{56}", ["3/56", "0.053571"], ["0.0536", "\\frac{56}{3}"]),
    ("540", ["540^\\circ", "540\\text{ ways}", "5.4 \\times 10^2"], ["54", "5400"]),
    ("13535", ["13{,}535", "\\text{13535}"], ["13355"]),
    ("6-5i", ["-5i+6", "6 - 5i"], ["6+5i", "-6-5i"]),
    ("2^{2005}", ["2^{2005}", "4\\cdot 2^{2003}"], ["2^{2004}", "2005^2"]),
    ("\\frac{270}{7}\\text{ degrees}", ["\\frac{270}{7}", "\\frac{270}{7}^\\circ"], ["\\frac{7}{270}"]),
    ("(6,31,-1)", ["(6, 31, -1)", "x=6,y=31,z=-1"], ["(6,-1,31)", "(6,31,1)"]),
    ("x\\in(-2,1)", ["(-2,1)", "-2<x<1"], ["[-2,1]", "-2\\le x\\le1"]),
    ("\\ln\\frac{3}{2}", ["\\ln 3-\\ln 2", "\\ln 1.5", "\\ln(3/2)"], ["\\ln 3", "\\frac{\\ln 3}{\\ln 2}"]),
    ("\\frac{1}{2}\\ln 3", ["\\ln\\sqrt{3}", "\\frac{\\ln 3}{2}"], ["\\ln\\frac32", "2\\ln 3"]),
    ("e^{-2}", ["\\frac{1}{e^2}", "e^{-2}"], ["-e^2", "e^2"]),
    ("C=\\frac{5}{9}(F-32)", ["C = \\frac{5(F-32)}{9}", "\\frac59(F-32)"], ["C=\\frac95F+32"]),
    ("\\frac{n!}{k!(n-k)!}", ["\\frac{n!}{(n-k)!k!}"], ["\\frac{n!}{(n-k)!}"]),
    ("60\\%", ["60\\%", "\\frac{3}{5}", "60 percent"], ["0.06", "40\\%"]),
    ("\\sqrt{x+1}", ["(x+1)^{1/2}", "(1+x)^{0.5}"], ["\\sqrt{x}+1", "x+1"]),
    ("\\{2,3,5,7\\}", ["2,3,5,7", "\\{7,5,3,2\\}"], ["\\{2,3,5\\}"]),
    ("(a-1)(a+1)", ["a^2-1", "-(1-a)(1+a)"], ["a^2+1", "(a-1)^2"]),
    ("0.\\overline{27}", ["\\frac{3}{11}"], ["0.27", "\\frac{27}{100}"]),
    ("\\max(2,3)", ["3"], ["2"]),
    ("\\sum_{k=1}^{n}k", ["\\sum_{k=1}^{n} k"], ["n"]),
    ("\\frac{dy}{dx}=2x", ["\\frac{dy}{dx}=2x", "2x"], ["x^2"]),
]

# Whole texts: (gold, right, wrong).
TEXTS = {
    "extraction": [
        ("$5$", ["The answer is 5", "So we get $5$.", "The final answer is $5$. I hope it is correct.", "\\boxed{4}? No: \\boxed{5}", "first 3, then 5", "**Answer:** 5", "Answer: $5$", "\\fbox{5}", "It is $$5$$", "It is \\(5\\).", "It is \\[5\\]", "5", "<think>maybe \\boxed{4}</think> \\boxed{5}", "$x = 5$", "Thus \\boxed{\\text{5}}", "The answer is $\\boxed{5}$.", "\\boxed {5}"], ["The answer is 4", "\\boxed{5}, no: \\boxed{4}", "5 is wrong, it is 6", "no number here", "", "\\boxed{}", "\\boxed{6} and not 5", "I do not know"]),
        ("$\\frac{1}{2}$", ["The answer is 1/2", "It is \\(\\frac{1}{2}\\)", "It is \\[\\frac{1}{2}\\]", "so $\\frac{1}{2}$", "\\boxed{\\frac{1}{2}}", "$$x=\\frac{1}{2}$$", "\\boxed{\\frac{1}{2}}.", "$\\boxed{\\dfrac{1}{2}}$", "the probability is 0.5"], ["The answer is 1", "about 2", "\\boxed{\\frac{1}{3}}"]),
        ("\\boxed{x^2+1}", ["\\boxed{x^2+1}", "so $x^2+1$", "$$1+x^2$$", "The final answer is $x^{2}+1$."], ["$x^2$", "\\boxed{x^2-1}"]),
        ("$12$", ["1. First: 3\n2. Then: 4\nSo $3\\cdot4=12$", "\\boxed{12\\text{ apples}}", "She has 12 apples.", "\\[\n\\boxed{12}\n\\]", "= 12"], ["She has 21 apples.", "12 apples and 3 pears", "\\boxed{1}2"]),
        ("$\\{1,2\\}$", ["\\boxed{1} and \\boxed{2}", "\\boxed{1,2}", "$1, 2$"], ["\\boxed{1}", "\\boxed{3} and \\boxed{2}"]),
    ],
    "GSM8K": [
        ("She sold 48/2 = 24 clips.\n#### 72", ["#### 72", "The answer is \\boxed{72}.", "So she sold 72", "She sold $72$ clips."], ["#### 71", "\\boxed{48}", "24"]),
        ("12 * $1.25 = $15\n#### 15", ["She pays \\boxed{\\$15}", "\\boxed{15.00}", "It costs \\$15."], ["\\boxed{12}", "1.25"]),
        ("#### 1,250", ["\\boxed{1250}", "\\boxed{1,250}", "that makes 1250", "1,250"], ["\\boxed{125}", "250"]),
        ("#### -3", ["\\boxed{-3}", "The answer is -3."], ["\\boxed{3}"]),
    ],
    "MATH": [
        ("\\frac{7}{2}", ["\\boxed{\\frac{7}{2}}", "\\boxed{3.5}", "$\\frac72$"], ["\\boxed{\\frac{2}{7}}"]),
        ("We have $x=2$. Therefore $\\boxed{\\frac{7}{2}}$.", ["\\boxed{3.5}", "\\boxed{\\frac72}"], ["\\boxed{2}"]),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", ["\\boxed{\\left(3,\\frac{\\pi}{2}\\right)}", "\\boxed{(3,\\pi/2)}"], ["\\boxed{(3,\\pi)}"]),
        ("p - q", ["\\boxed{p-q}", "\\boxed{-q+p}"], ["\\boxed{q-p}"]),
        ("\\text{Evelyn}", ["\\boxed{\\text{Evelyn}}", "\\boxed{Evelyn}"], ["\\boxed{\\text{Carla}}"]),
        ("(-\\infty, 0]", ["\\boxed{(-\\infty,0]}"], ["\\boxed{(-\\infty,0)}"]),
        ("11\\sqrt{2}", ["\\boxed{11\\sqrt2}", "\\boxed{\\sqrt{242}}"], ["\\boxed{11}"]),
        ("x^3 + 3x - 6", ["\\boxed{x^3+3x-6}", "\\boxed{3x - 6 + x^3}"], ["\\boxed{x^3-3x-6}"]),
        ("70\\,000", ["\\boxed{70000}", "\\boxed{70,000}"], ["\\boxed{70}"]),
        ("6\\text{ and }-2", ["\\boxed{6,-2}", "\\boxed{-2,6}"], ["\\boxed{6}"]),
    ],
    "malformed": [
        ("$5$", ["\\boxed{5", "$5", "\\boxed{{5}}"], ["\\boxed{\\frac{5}{}}", "\\boxed{(5}", "\\boxed{5)(}", "\\boxed{\\sqrt}", "\\boxed{++}", "\\boxed{\\frac}", "\\boxed{^5}", "\\boxed{\\text{}}", "\\boxed{}5{}", "\\boxed{5,}6"]),
        ("$\\frac{1}{2}$", ["\\boxed{\\frac{1}{2}"], ["\\boxed{\\frac{1}{2", "\\boxed{\\frac 1}", "\\boxed{1//2}", "$\\frac{1}$"]),
        ("$x+1$", [], ["\\boxed{x+}", "\\boxed{x++1+}", "\\boxed{\\left(x+1}", "\\boxed{x+1=}"]),
        ("$\\frac{1}{0}$", ["\\boxed{\\frac{1}{0}}"], ["\\boxed{\\infty}", "\\boxed{0}"]),
    ],
}


def cases():
    for kind, groups in KINDS.items():
        for gold, right, wrong in groups:
            for answers, is_right in ((right, True), (wrong, False)):
                for answer in answers:
                    yield kind, f"${gold}$", f"The answer is $\\boxed{{{answer}}}$.", is_right
    for kind, groups in TEXTS.items():
        for gold, right, wrong in groups:
            for answers, is_right in ((right, True), (wrong, False)):
                for answer in answers:
                    yield kind, gold, answer, is_right


def verdicts(gold, answer):
    trl = accuracy_reward([[{"content": answer}]], [gold])[0]
    return {"verify": verify(parse(gold), parse(answer)), "trl": None if trl is None else trl == 1.0}


with Path(__file__).with_name("math.jsonl").open("w") as file:
    for kind, gold, answer, right in cases():
        row = {"kind": kind, "gold": gold, "answer": answer, "right": right, **verdicts(gold, answer)}
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
